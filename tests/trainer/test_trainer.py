"""The trainer in the ways in which people write it, on real stores and runners."""

from __future__ import annotations

import asyncio
import copy
import logging
import runpy
import threading
from urllib.parse import urlsplit

import psutil
import pytest
from agents_for_trainer import Forgetful, Half, Obedient, earn_by_prompt, earn_half, half

from mini_agentic_rl import (
    Algorithm,
    Baseline,
    InMemoryLightningStore,
    LightningStoreServer,
    PromptTemplate,
    SqlLightningStore,
    Trainer,
)
from mini_agentic_rl.errors import UserError

TRAIN, VAL = ["a", "b", "c"], ["v"]


@pytest.fixture
def store():
    return InMemoryLightningStore()


def _run(store):
    """(mode, task, status) of every rollout, in the order in which they were queued."""
    rollouts = asyncio.run(store.query_rollouts())
    return [(rollout.mode, rollout.input, rollout.status) for rollout in rollouts]


def _expected(train, val):
    return [("train", task, "succeeded") for task in train] + [("val", task, "succeeded") for task in val]


SPELLINGS = {
    "fit(agent, train, val)": lambda make: make().fit(Half(), TRAIN, VAL),
    "fit(all by name)": lambda make: make().fit(agent=Half(), train_dataset=TRAIN, val_dataset=VAL),
    "Trainer(agent).fit(train, val)": lambda make: make(agent=Half()).fit(TRAIN, VAL),
    "Trainer(everything).fit()": lambda make: make(agent=Half(), train_dataset=TRAIN, val_dataset=VAL).fit(),
    "Trainer(tasks).fit(agent)": lambda make: make(train_dataset=TRAIN, val_dataset=VAL).fit(Half()),
    "the call wins": lambda make: make(agent=earn_by_prompt, train_dataset=["x"]).fit(Half(), TRAIN),
    "a class": lambda make: make().fit(Half, TRAIN),
    "a function": lambda make: make().fit(earn_half, TRAIN),
    "a decorated function": lambda make: make(agent=half).fit(TRAIN),
    "a dotted path": lambda make: make(agent="agents_for_trainer:Half").fit(TRAIN),
    "Trainer(dev=True).fit": lambda make: make(algorithm=Forgetful, dev=True).fit(Half(), TRAIN),
    "await train(function, train, val)": lambda make: asyncio.run(make().train(earn_half, TRAIN, val_dataset=VAL)),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_each_spelling_runs_each_task_once(store, spelling):
    SPELLINGS[spelling](lambda **settings: Trainer(**{"algorithm": Baseline(), "store": store, **settings}))
    found = _run(store)
    assert found == _expected(TRAIN, [task for mode, task, _ in found if mode == "val"])
    assert ("val" in spelling or "everything" in spelling) <= (len(found) == 4)


def test_train_runs_beside_other_work_of_its_loop_and_returns_the_summary(store):
    async def main():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        summary = await Trainer(
            algorithm=Baseline(),
            num_epochs=3,
            train_dataset=["ab", "abc"],
            resources={"prompt": PromptTemplate(template="{word}!")},
            store=store,
        ).train(earn_by_prompt)
        ticking.cancel()
        return ticks, summary

    ticks, summary = asyncio.run(main())
    assert ticks > 3
    assert summary == {"rollouts": {"succeeded": 6}, "reward": {"train": 3.5}}


@pytest.mark.parametrize("method", ["fit", "dev"])
async def test_inside_a_running_loop_the_error_names_train(method):
    with pytest.raises(RuntimeError, match=r"await trainer\.train\("):
        getattr(Trainer(algorithm=Baseline()), method)(Half(), TRAIN)


class Waiting(Algorithm):
    """Waits until it is stopped, and then still does something."""

    def __init__(self, begun) -> None:
        super().__init__()
        self.begun = begun
        self.saved = False

    async def run(self, train_dataset=None, val_dataset=None):
        try:
            self.begun.set()
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.2)
            self.saved = True


@pytest.mark.parametrize(
    "strategy",
    [{"type": "shm"}, {"type": "shm", "main_thread": "runner"}, {"type": "cs", "server_port": 0, "n_runners": 1}],
)
async def test_cancelling_train_stops_the_run_and_lets_the_algorithm_save(strategy):
    algorithm = Waiting(threading.Event())
    before = set(threading.enumerate())
    training = asyncio.create_task(Trainer(algorithm=algorithm, strategy=strategy).train(Half(), TRAIN))
    assert await asyncio.to_thread(algorithm.begun.wait, 10)
    training.cancel()
    with pytest.raises(asyncio.CancelledError):
        await training
    assert algorithm.saved
    left = {thread for thread in set(threading.enumerate()) - before if not thread.name.startswith("asyncio")}
    await asyncio.to_thread(lambda: [thread.join(5) for thread in left])
    assert [thread.name for thread in left if thread.is_alive()] == []


async def test_cancelling_train_ends_runners_that_are_alone_in_processes_of_their_own():
    server = LightningStoreServer(InMemoryLightningStore(), "127.0.0.1", 0)
    await server.start()
    strategy = {"type": "cs", "role": "runner", "server_port": urlsplit(server.endpoint).port, "n_runners": 1}
    others = {child.pid for child in psutil.Process().children()}
    training = asyncio.create_task(Trainer(strategy=strategy).train(Half()))
    try:
        while not (await server.query_workers()).items:
            await asyncio.sleep(0.05)
        training.cancel()
        with pytest.raises(asyncio.CancelledError):
            await training
        assert {child.pid for child in psutil.Process().children()} <= others
    finally:
        await server.stop()


def test_settings_reach_an_algorithm_that_follows_them(caplog):
    algorithm = Obedient()
    trainer = Trainer(
        algorithm=algorithm,
        num_epochs=2,
        on_failure="retry",
        initial_resources={"prompt": PromptTemplate(template="x")},
        n_runners=3,
        llm_proxy={"type": dict, "a": 1},
    )
    with caplog.at_level(logging.WARNING):
        trainer.fit(Half(), TRAIN, VAL)
    train, val, context = algorithm.given
    assert (train, val) == (TRAIN, VAL)
    assert (context.num_epochs, context.on_failure, context.n_runners) == (2, "retry", 3)
    assert context.initial_resources["prompt"].template == "x"
    assert context.llm_proxy == {"a": 1}
    assert context.adapter is trainer.adapter
    assert algorithm.get_trainer() is trainer
    assert caplog.text == ""


def test_a_setting_that_an_algorithm_does_not_follow_is_warned_of_by_name(caplog):
    with caplog.at_level(logging.WARNING):
        Trainer(algorithm=Forgetful(), num_epochs=2, on_failure="zero").fit(Half(), TRAIN)
        Trainer(algorithm=Baseline(), num_epochs=2, on_failure="drop").fit(Half(), TRAIN)
    warnings = [record.message for record in caplog.records if "no effect" in record.message]
    assert warnings == [
        "Trainer(num_epochs=2) has no effect: Forgetful does not follow it",
        "Trainer(on_failure='zero') has no effect: Forgetful does not follow it",
        "Trainer(on_failure='drop') has no effect: Baseline does not follow it",
    ]


@pytest.mark.parametrize(
    ("data", "error", "named"),
    [
        ([TRAIN], ValueError, r"Trainer\(agent=…\)"),
        ([Half(), "gsm8k.Dataset"], UserError, "train_dataset"),
        ([Half(), {"train": TRAIN}], UserError, "train_dataset"),
        ([Half(), (task for task in TRAIN)], UserError, "train_dataset"),
        ([TRAIN, VAL, VAL], UserError, "agent=list"),
    ],
)
def test_arguments_of_fit_that_are_missing_or_of_another_type_are_named(data, error, named):
    with pytest.raises(error, match=named):
        Trainer(algorithm=Baseline()).fit(*data)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"n_runners": 0}, "n_runners"),
        ({"num_epochs": 0}, "num_epochs"),
        ({"on_failure": "ignore"}, "on_failure"),
        ({"resume": True}, "output_dir"),
        ({"resources": {}, "initial_resources": {}}, "initial_resources and resources"),
    ],
)
def test_a_setting_that_cannot_work_is_named(settings, named):
    with pytest.raises(ValueError, match=named):
        Trainer(algorithm=Baseline(), **settings)


def test_an_agent_knows_its_trainer_and_travels_without_it(store):
    agent = Half()
    trainer = Trainer(algorithm=Baseline(), store=store)
    trainer.fit(agent, ["a"])
    assert agent.trainer is trainer
    sent = copy.deepcopy(agent)
    with pytest.raises(ValueError, match="no trainer"):
        _ = sent.trainer


def test_a_run_folder_gets_the_rollouts_and_an_unfinished_one_is_not_run_again(tmp_path):
    async def leave_one():
        left = SqlLightningStore(tmp_path / "rollouts.db")
        await left.enqueue_rollout("left over")
        await left.close()

    async def look():
        kept = SqlLightningStore(tmp_path / "rollouts.db")
        try:
            return [(rollout.input, rollout.status) for rollout in await kept.query_rollouts()]
        finally:
            await kept.close()

    asyncio.run(leave_one())
    trainer = Trainer(algorithm=Baseline(), output_dir=tmp_path, resume=True)
    trainer.fit(Half(), ["a"])
    assert asyncio.run(look()) == [("left over", "cancelled"), ("a", "succeeded")]


def test_a_store_server_that_is_there_is_found_by_the_environment(store, monkeypatch):
    server = LightningStoreServer(store, port=0)
    asyncio.run(server.start())
    try:
        monkeypatch.setenv("AGL_MANAGED_STORE", "0")
        monkeypatch.setenv("AGL_SERVER_PORT", server.endpoint.rpartition(":")[2])
        Trainer(algorithm=Baseline(), strategy="shm").fit(Half(), TRAIN)
    finally:
        asyncio.run(server.stop())
    assert _run(store) == _expected(TRAIN, [])


def test_a_process_of_runners_alone_opens_no_store_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("AGL_CURRENT_ROLE", "runner")
    trainer = Trainer(algorithm=Baseline(), output_dir=tmp_path / "run")
    trainer.strategy.main_process = "runner"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.strategy, "execute", lambda algorithm, runner, store: seen.append(type(store)))
        seen: list[type] = []
        trainer.fit(Half(), TRAIN)
    assert seen == [InMemoryLightningStore]
    assert not (tmp_path / "run").exists()


SCRIPT = """
import asyncio
import sys
from typing import Optional

import {package} as agl
from {package}.types import AttemptedRollout


class Greeter(agl.LitAgent[dict]):
    def rollout(self, task: dict, resources: agl.NamedResources, rollout: AttemptedRollout) -> Optional[float]:
        prompt = resources["prompt"].format(name=task["name"])
        agl.emit_message("greeting " + prompt)
        with agl.operation(name="score") as op:
            op.set_input(prompt)
            score = 1.0 if prompt.startswith("Dear") else 0.0
            op.set_output(score)
        agl.emit_reward({{"style": score, "length": float(len(prompt))}}, primary_key="style")
        return None


class Log(agl.Hook):
    async def on_rollout_end(self, *, agent, runner, rollout, spans):
        print("final reward", agl.find_final_reward(spans), file=sys.stderr)


@agl.algo
async def choose_prompt(*, train_dataset, store: agl.LightningStore, adapter, initial_resources, llm_proxy):
    assert isinstance(adapter, agl.TracerTraceToTriplet) and llm_proxy is None and "prompt" in initial_resources
    scores = {{}}
    for template in ("Hi {{name}}", "Dear {{name}}"):
        resources = await store.add_resources({{"prompt": agl.PromptTemplate(template=template, engine="f-string")}})
        rollouts = [
            await store.enqueue_rollout(
                input=task,
                mode="train",
                resources_id=resources.resources_id,
                config=agl.RolloutConfig(max_attempts=2, retry_condition=["failed"]),
            )
            for task in train_dataset
        ]
        ids = [rollout.rollout_id for rollout in rollouts]
        while len(await store.wait_for_rollouts(rollout_ids=ids, timeout=1.0)) < len(ids):
            pass
        rewards = []
        for rollout_id in ids:
            spans = await store.query_spans(rollout_id, attempt_id="latest")
            assert [agl.get_message_value(s) for s in spans if s.name == "agentlightning.message"]
            rewards.append(agl.find_final_reward(spans))
        scores[template] = sum(rewards) / len(rewards)
    print(max(scores, key=scores.get), scores)


if __name__ == "__main__":
    agl.setup_logging("WARNING")
    trainer = agl.Trainer(
        algorithm=choose_prompt,
        n_runners=2,
        initial_resources={{"prompt": agl.PromptTemplate(template="Hi {{name}}", engine="f-string")}},
        tracer=agl.OtelTracer(),
        strategy={{"type": "shm", "main_thread": "algorithm"}},
        store=agl.InMemoryLightningStore(),
        hooks=[Log()],
    )
    trainer.fit(Greeter(), train_dataset=[{{"name": "Ada"}}, {{"name": "Alan"}}])
    trainer.dev(Greeter(), train_dataset=[{{"name": "Ada"}}])
    print([r.status for r in asyncio.run(trainer.store.query_rollouts())])
"""


def test_a_script_in_the_style_of_agent_lightning_runs_after_changing_its_import(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(package="mini_agent_lighting"))
    runpy.run_path(str(script), run_name="__main__")
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "Dear {name} {'Hi {name}': 0.0, 'Dear {name}': 1.0}",
        "['succeeded', 'succeeded', 'succeeded', 'succeeded', 'succeeded']",
    ]
    assert err.count("final reward 1.0\n") == 2
