"""The Grafana dashboard asks for what is really exported: by a run, by a gateway, and by a store."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gateway.scripted import ScriptedSampler
from gateway.small_tokenizer import small_tokenizer
from mini_agentic_rl import MiniGRPO, Trainer
from mini_agentic_rl.cli.store_server import ServeStoreSettings
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.jobs import TrainConfig
from mini_agentic_rl.metrics import PrometheusLogger
from mini_agentic_rl.store import InMemoryLightningStore, LightningStoreError, LightningStoreServer
from talking import Talking

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
SELECTOR = re.compile(r"(mini_agentic_rl_\w+)(?:\{name=~\"([^\"]*)\"\})?")


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


@pytest.fixture(scope="module")
def exported(run):
    """Return the samples of a run, a gateway and a store, as (name, labels)."""
    tokenizer = small_tokenizer()
    store = LightningStoreServer(InMemoryLightningStore(), port=0)
    asyncio.run(store.start())
    with MiniLLMServer(ScriptedSampler(tokenizer, ["ok"]), tokenizer, model_name="tiny", port=0) as server:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "stream": True}
        assert httpx.post(f"{server.endpoint}/chat/completions", json=body).is_success
        assert httpx.get(f"{store.endpoint}/v1/agl/rollouts").is_success
        roots = (server.endpoint.removesuffix("/v1"), store.endpoint)
        texts = [run, *(httpx.get(f"{root}/metrics").text for root in roots)]
    asyncio.run(store.stop())
    families = [family for text in texts for family in text_string_to_metric_families(text)]
    return [(sample.name, sample.labels) for family in families for sample in family.samples]


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_names_metrics_that_are_exported(exported, query):
    selectors = SELECTOR.findall(query)
    assert selectors
    for name, labels in selectors:
        found = [labels_of for sample, labels_of in exported if sample == name]
        assert found, f"{name} is exported nowhere"
        if labels:
            values = {one["name"] for one in found}
            assert any(re.fullmatch(labels, value) for value in values), sorted(values)
        for label in re.findall(r"by \(([^)]*)\)", query):
            assert set(label.replace(" ", "").split(",")) <= set(found[0]), (label, found[0])


def test_every_panel_shows_something_and_has_a_place_of_its_own():
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert all(panel["targets"] and panel["title"] and panel["description"] for panel in panels)
    places = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for at in [panel["gridPos"]]
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(places) == len(set(places))


def test_prometheus_is_told_the_ports_that_the_commands_have():
    jobs = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())["scrape_configs"]
    ports = {job["job_name"]: job["static_configs"][0]["targets"][0].partition(":")[2] for job in jobs}
    settings = TrainConfig(metrics_port=9109, gateway_port=8000)
    assert ports["training"] == str(settings.run.metrics_port)
    assert ports["gateway"] == str(settings.loop.gateway_port)
    assert ports["store"] == str(ServeStoreSettings().port)


def test_a_run_tells_its_step_its_phase_and_when_it_was_heard_of_last(run):
    samples = {
        (sample.name.removeprefix("mini_agentic_rl_training_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(run)
        for sample in family.samples
    }
    assert samples["step",] == 1
    assert samples["logged_seconds",] > 1e9
    assert any(name[0] == "phase_done" and value > 0 for name, value in samples.items())
    assert ("metric", "reward") in samples or ("metric", "reward/mean") in samples


def test_a_port_that_is_taken_is_told_with_its_setting():
    first = PrometheusLogger(0)
    with pytest.raises(UserError, match=r"metrics_port: .*port \d+ at 127.0.0.1 cannot be had"):
        PrometheusLogger(first.port)
    first.close()


async def test_a_store_that_does_not_answer_is_told_as_such():
    class Broken(InMemoryLightningStore):
        async def statistics(self):
            raise LightningStoreError("the disk is away")

    server = LightningStoreServer(Broken(), port=0)
    await server.start()
    answer = await asyncio.to_thread(httpx.get, f"{server.endpoint}/metrics")
    await server.stop()
    assert (answer.status_code, answer.json()["detail"]) == (503, "the disk is away")
