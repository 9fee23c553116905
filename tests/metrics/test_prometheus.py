"""A run and a store server tell Prometheus their numbers."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mini_agentic_rl import MiniGRPO, Trainer
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.metrics import PrometheusLogger
from mini_agentic_rl.store import InMemoryLightningStore, LightningStoreError, LightningStoreServer
from talking import Talking


@pytest.fixture(scope="module")
def run(tiny_folder):
    """Return what Prometheus reads of a run, before and after its logger is closed."""
    logger = PrometheusLogger(0)
    algorithm = MiniGRPO(
        tiny_folder, total_steps=1, tasks_per_step=2, samples_per_prompt=2, max_new_tokens=4, eval_size=1, kl_coef=0.1
    )
    trainer = Trainer(algorithm=algorithm, n_runners=4, logger=logger)
    trainer.fit(Talking(), [{"word": "one"}, {"word": "two"}], val_dataset=[{"word": "three"}])
    address = f"http://127.0.0.1:{logger.port}/metrics"
    text = httpx.get(address).text
    logger.close()
    logger.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(address)
    return text


def samples_of(text):
    """Return the values of samples, by name and values of labels."""
    return {
        (sample.name.removeprefix("mini_agentic_rl_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_run_tells_its_step_its_phase_and_when_it_was_heard_of_last(run):
    samples = samples_of(run)
    assert samples["training_step",] == 1
    assert samples["training_logged_seconds",] > 1e9
    assert any(name[0] == "training_phase_done" and value > 0 for name, value in samples.items())
    assert {("training_metric", "reward"), ("training_metric", "reward/mean")} & set(samples)


def test_a_port_that_is_taken_is_told_with_its_setting():
    first = PrometheusLogger(0)
    with pytest.raises(UserError, match=r"metrics_port: .*port \d+ at 127.0.0.1 cannot be opened"):
        PrometheusLogger(first.port)
    first.close()


async def test_a_store_tells_its_requests_what_it_holds_and_its_rollouts_by_status():
    server = LightningStoreServer(InMemoryLightningStore(), port=0)
    await server.start()
    assert (await asyncio.to_thread(httpx.get, f"{server.endpoint}/v1/agl/rollouts")).is_success
    samples = samples_of((await asyncio.to_thread(httpx.get, f"{server.endpoint}/metrics")).text)
    await server.stop()
    names = {name for name, *_ in samples}
    assert names >= {f"store_{name}" for name in ("items", "rollouts", "requests_total", "request_seconds_bucket")}
    assert any(name[0] == "store_requests_total" and value == 1 for name, value in samples.items())


async def test_a_store_that_does_not_answer_is_told_as_such():
    class Broken(InMemoryLightningStore):
        async def statistics(self):
            raise LightningStoreError("the disk is away")

    server = LightningStoreServer(Broken(), port=0)
    await server.start()
    answer = await asyncio.to_thread(httpx.get, f"{server.endpoint}/metrics")
    await server.stop()
    assert (answer.status_code, answer.json()["detail"]) == (503, "the disk is away")
