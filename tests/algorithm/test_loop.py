"""The loop on a tiny model: which tasks it draws, what it learns and reports, and what failing and idle runs say."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter

import numpy as np
import openai
import pytest
from letters import TASKS, AnyReward, Asking, CountLetters, Kept, Letters, algorithm, fit

from mini_agentic_rl import AgentOpsTracer, InMemoryLightningStore, LitAgent, MiniGRPO, Trainer
from mini_agentic_rl.algorithm import GRPOSettings, sampling
from mini_agentic_rl.algorithm.sampling import IdleSteps, LostSteps, SampledStep, tail_of
from mini_agentic_rl.algorithm.tasks import TaskDraws, derive_seed, kinds_of, task_order, tasks_from
from mini_agentic_rl.errors import RunFailedError
from mini_agentic_rl.gateway.settings import GatewayLimits
from mini_agentic_rl.policy import LearnerSettings
from mini_agentic_rl.semconv import AGL_EXCEPTION, ROLLOUT_BUDGET_EXCEEDED
from mini_agentic_rl.types import Rollout
from tiny import tiny_model, tiny_tokenizer


def test_a_tiny_model_learns_to_the_threshold(tmp_path):
    store = InMemoryLightningStore()
    trained = algorithm(total_steps=6, learner=LearnerSettings(learning_rate=1e-2))
    options = {"store": store, "n_runners": 32, "output_dir": tmp_path, "val_dataset": TASKS}
    kept = fit(trained, Letters(), TASKS, [CountLetters()], **options)
    before, after = trained.summary["accuracy"]
    assert (before["name"], before["count"], before["correct"]) == ("before", 8, 0)
    assert (after["name"], after["count"]) == ("after RL", 8)
    assert after["correct"] >= 6
    steps = [row for row in kept.rows if "reward/mean" in row]
    assert len(steps) == 6
    assert max(row.get("mismatch/mean_abs", 0.0) for row in steps) < 1e-4
    assert trained.summary["untrained"] == {}
    rollouts = [rollout for rollout in asyncio.run(store.query_rollouts()) if rollout.mode == "train"]
    drawn = {(one.metadata["group"], one.input["word"], one.metadata["sampling_seed"]) for one in rollouts}
    assert drawn == {
        (f"{step}/{index}", TASKS[row]["word"], derive_seed(0, "rollout", step, index, sample))
        for step in range(6)
        for index, row in enumerate(tasks_from(0, len(TASKS), 4 * step, 4))
        for sample in range(8)
    }


async def test_an_interrupted_run_without_a_folder_says_that_nothing_is_kept():
    kept = Kept()
    trainer = Trainer(algorithm=algorithm(total_steps=500), hooks=[AnyReward()], n_runners=32, logger=kept)
    run = asyncio.create_task(trainer.train(Letters(), TASKS))
    while not kept.rows:
        await asyncio.sleep(0.02)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert [note for note in kept.notes if "interrupted" in note] == [
        "interrupted: nothing is kept, because the trainer has no output_dir"
    ]


class Quiet(LitAgent):
    """Calls the model for some tasks only, and raises for another."""

    def rollout(self, task):
        if task["word"] == "go":
            raise RuntimeError("no way")
        return 1.0


def test_rollouts_that_give_nothing_say_why():
    with pytest.raises(ValueError, match="train_dataset is empty"):
        fit(algorithm(), Letters(), [])
    store = InMemoryLightningStore()
    trained = algorithm(total_steps=1, tasks_per_step=2, samples_per_prompt=2, seed=3)
    with pytest.raises(RunFailedError, match="all 4 rollouts of the training failed"):
        fit(trained, Quiet(), TASKS[:2], store=store)
    reasons = trained.summary["untrained"]
    assert sum(reasons.values()) == 4
    assert any("no LLM call recorded" in reason for reason in reasons)
    assert any("no way" in reason for reason in reasons)
    ended = asyncio.run(store.query_rollouts())
    assert sorted({rollout.status for rollout in ended}) == ["failed", "succeeded"]


SMALL = {"tasks_per_step": 2, "samples_per_prompt": 2, "eval_size": 2, "checkpoint_every": 1}


class Broken(LitAgent):
    """Cannot reach what it needs."""

    def rollout(self, task):
        raise ConnectionError(f"cannot connect to port {len(task['word'])}{task['word'].count('o')}")


class Sometimes(Letters):
    """Half of its tasks fail."""

    async def rollout_async(self, task, resources, rollout):
        if "o" in task["word"]:
            raise ConnectionError("no route to host")
        await super().rollout_async(task, resources, rollout)


def test_a_training_that_fails_names_the_most_frequent_error_and_is_resumed_once_it_is_mended(tmp_path, caplog):
    agents = {"broken": type("Letters", (Broken,), {}), "mended": Letters}  # a run is resumed with the same agent

    def run(agent):
        options = {"output_dir": tmp_path, "resume": agent == "mended", "val_dataset": TASKS}
        fit(algorithm(total_steps=2, **SMALL), agents[agent](), TASKS, [CountLetters()], **options)

    cause = "all 8 rollouts of the training failed: attempt failed: the agent: ConnectionError: cannot connect to port"
    with caplog.at_level(logging.WARNING), pytest.raises(RunFailedError, match=cause):
        run("broken")
    assert not (tmp_path / "summary.json").exists()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step_0"]
    said = [record.name.rpartition(".")[2] for record in caplog.records if "cannot connect" in record.message]
    assert sorted(said) == ["attempt", "rollouts"]
    run("mended")
    assert json.loads((tmp_path / "summary.json").read_text())["untrained"] == {}


def test_what_fails_again_and_again_is_told_once_and_counted_at_the_end(caplog):
    with caplog.at_level(logging.WARNING):
        kept = fit(algorithm(total_steps=4, **SMALL), Sometimes(), TASKS, [CountLetters()])
    assert sum("no route to host" in record.message for record in caplog.records) == 2
    assert any("of 16 rollouts were not trained" in note and "no route to host" in note for note in kept.notes)


def test_a_run_notes_what_it_trains_and_how_far_a_long_step_is(monkeypatch):
    monkeypatch.setattr(sampling, "SECONDS_BETWEEN_NOTES", 0.0)
    tokenizer = tiny_tokenizer()
    model = tiny_model(len(tokenizer))
    whole = sum(parameter.numel() for parameter in model.parameters())
    trained = MiniGRPO(model, tokenizer, total_steps=1, max_new_tokens=2, **SMALL)
    kept = fit(trained, Letters(), TASKS, [CountLetters()])
    counted = trained.summary["parameters"]
    assert counted["all"] == whole + counted["trained"]
    share = f"{100 * counted['trained'] / counted['all']:.2f} %"
    assert trained.summary["kernels"] == "torch"  # the tiny model is in float32
    assert f"training {counted['trained']:,} of {counted['all']:,} parameters ({share})" in kept.notes
    assert "step 1: 4 of 4 rollouts" in kept.notes


def test_the_gateway_alone_records_the_calls_that_it_answers():
    store = InMemoryLightningStore()
    trained = algorithm(total_steps=1, tasks_per_step=1, samples_per_prompt=2, max_new_tokens=2, eval_size=1)
    options = {"tracer": AgentOpsTracer(), "store": store, "val_dataset": TASKS[:1]}
    fit(trained, Letters(), TASKS[:1], [CountLetters()], **options)

    async def calls() -> list[int]:
        found = []
        for rollout in await store.query_rollouts():
            spans = await store.query_spans(rollout.rollout_id)
            found.append(len([span for span in spans if span.name == "openai.chat.completion"]))
        return found

    assert asyncio.run(calls()) == [1, 1, 1, 1]  # measured before, two samples, measured after


class AsksAgain(Asking):
    """Two calls, the second after the first and the answer to it; in some tasks it writes the answer down changed."""

    async def rollout_async(self, task, resources, rollout):
        messages = [{"role": "user", "content": task["word"]}]
        for turn in range(2):
            content = await self.ask(rollout, resources["llm"], messages)
            changed = "changed " if task["word"] == "go" and turn == 0 else ""
            messages += [{"role": "assistant", "content": changed + content}, {"role": "user", "content": "More."}]
        rollout.metadata["reply"] = content


def test_each_step_tells_how_many_prompts_continued_began_and_forked_and_why():
    trained = algorithm(total_steps=2, tasks_per_step=2, samples_per_prompt=3)
    tasks = [task for task in TASKS if task["word"] in ("hi", "go")]
    kept = fit(trained, AsksAgain(), tasks, [CountLetters()], n_runners=6)
    steps = [row for row in kept.rows if "drift/continued" in row]
    assert len(steps) == 2
    for row in steps:
        drift = {name: value for name, value in row.items() if name.startswith("drift/") and value}
        assert drift == {"drift/rendered": 6, "drift/continued": 3, "drift/forked": 3, "drift/forked_edited": 3}


REASON = "the rollout has made all its LLM calls (max_rollout_calls=2)"


class Runaway(Letters):
    """Never stops by itself; for some tasks it swallows the refusal, and answers with what it has."""

    async def rollout_async(self, task, resources, rollout):
        try:
            for _ in range(1000):
                await super().rollout_async(task, resources, rollout)
        except openai.PermissionDeniedError:
            if task["word"] == "go":
                raise


def test_a_runaway_agent_is_stopped_and_the_report_and_the_store_say_why():
    store, limits = InMemoryLightningStore(), GatewayLimits(max_rollout_calls=2)
    trained = algorithm(total_steps=1, tasks_per_step=2, samples_per_prompt=2, seed=3, limits=limits)
    kept = fit(trained, Runaway(), TASKS[:2], [CountLetters()], store=store)
    assert trained.summary["untrained"] == {f"attempt failed: {REASON}": 2}
    (step,) = [row for row in kept.rows if "rollout/over_budget" in row]
    assert (step["rollout/over_budget"], step["rollout/failed"]) == (4, 2)
    for rollout in asyncio.run(store.query_rollouts()):
        spans = list(asyncio.run(store.query_spans(rollout.rollout_id)))
        marks = [span for span in spans if span.attributes.get("exception.type") == ROLLOUT_BUDGET_EXCEEDED]
        assert [(mark.name, mark.attributes["exception.message"]) for mark in marks] == [(AGL_EXCEPTION, REASON)]
        assert sum("response_token_ids" in span.attributes for span in spans) == 2


@pytest.mark.parametrize(
    ("ends", "seconds"),
    [
        ([], 0),
        ([9.0], 0),  # no other one waited for it
        ([3.0, 1.0], 2),
        ([5.0, 5.0, 5.0], 0),
        ([*range(1, 8), 20], 13),
        ([*range(1, 16), 30], 16),  # an eighth of 16 is two: the last to end at 15 is among them
        ([*range(1, 16)], 1),
        ([1, 2, 3, 3604], 1000),  # the clock was set
    ],
)
def test_the_tail_is_the_time_of_the_last_eighth_of_the_rollouts_and_no_longer_than_the_step(ends, seconds):
    ended = [Rollout(rollout_id=str(n), input=None, start_time=0, end_time=end) for n, end in enumerate(ends)]
    assert tail_of(ended, 1000) == seconds


UNSOLVED = {"groups/with_signal": 0.0, "reward/mean": 0.0, "reward/std": 0.0}


def _lost(reason: str, count: int = 12) -> SampledStep:
    return SampledStep({}, (), {reason: count}, count, 0, {}, {})


def test_each_cause_is_told_once_and_all_are_counted():
    idle = IdleSteps(done=7)
    assert idle.after_step({**UNSOLVED, "writer/loss": 0.1}) is None, "one of several adapters learnt"
    assert idle.at_the_end() is None
    said = str(idle.after_step({**UNSOLVED, "rollout/truncated": 1.0}))
    assert said.startswith("nothing to learn from in step 9: ")
    assert "100 % of the rollouts ended at `max_new_tokens`" in said
    assert idle.after_step(UNSOLVED) is None
    assert "all rewards are 1" in str(idle.after_step({**UNSOLVED, "reward/mean": 1.0}))
    at_the_end = str(idle.at_the_end())
    assert at_the_end.startswith("3 of 4 steps had nothing to learn from: for 2 of them, take easier tasks")
    assert "; for 1 of them, take harder tasks" in at_the_end
    assert idle.after_step({"groups/count": 2.0, "rollout/failed": 8.0}) is None, "no rollout: the log said why"


def test_a_run_that_only_loses_rollouts_ends_by_the_most_frequent_reason():
    lost = LostSteps()
    lost.after_step(_lost("port 1 is closed"))
    lost.after_step(SampledStep({}, (), {"port 2 is closed": 11}, 12, 1, {}, {}))
    lost.after_step(_lost("no reward", 6))
    lost.after_step(_lost("port 3 is closed"))
    with pytest.raises(
        RunFailedError, match=r"all 30 rollouts of the last 3 steps failed: port 3 is closed \(24 times"
    ):
        lost.after_step(_lost("port 4 is closed"))
    few = LostSteps()
    for _ in range(7):
        few.after_step(_lost("no reward", 3))


def test_each_step_holds_as_many_tasks_of_each_kind_and_each_epoch_each_task():
    kinds = ["a"] * 40 + ["b"] * 40 + ["c"] * 40 + ["d"] * 40
    for step in range(20):
        rows = tasks_from(3, len(kinds), 8 * step, 8, kinds)
        assert Counter(kinds[row] for row in rows) == {"a": 2, "b": 2, "c": 2, "d": 2}
    assert sorted(task_order(3, len(kinds), 0, kinds)) == list(range(160))
    uneven = ["a"] * 3 + ["b"] * 7
    assert sorted(task_order(0, 10, 1, uneven)) == list(range(10))
    assert task_order(0, 10, 1, uneven) != task_order(0, 10, 2, uneven)


def test_kinds_are_known_only_where_every_task_has_one():
    assert kinds_of([{"question": "?"}, {"question": "!", "kind": "b"}]) is None
    assert kinds_of([]) is None
    assert kinds_of([{"kind": 1}, {"kind": "b"}]) == ["1", "b"]


def _draws(size, seed=0, rates=None):
    curriculum = "none" if rates is None else "pass_rate"
    settings = GRPOSettings(curriculum=curriculum, seed=seed)
    return TaskDraws(settings, [None] * size, dict(rates or {}))


def test_tasks_come_in_the_order_of_the_epochs_however_they_are_drawn():
    draws = _draws(5, seed=3)
    once = draws.draw(4, step=2, first=8, drawn=[])
    assert once == tasks_from(3, 5, 8, 4)
    begun = draws.draw(1, step=2, first=8, drawn=[])
    assert [*begun, *draws.draw(3, step=2, first=8, drawn=begun)] == once


def test_a_curriculum_prefers_tasks_that_are_solved_half_of_the_time():
    draws = _draws(5, rates={str(row): rate for row, rate in enumerate([0.0, 0.1, 0.5, 0.9, 1.0])})
    counts = np.zeros(5)
    for step in range(600):
        counts[draws.draw(1, step=step, first=0, drawn=[])] += 1
    weights = np.array([0.1, 0.36, 1.0, 0.36, 0.1])
    np.testing.assert_allclose(counts / 600, weights / weights.sum(), atol=0.05)


def test_a_curriculum_draws_no_task_twice_while_there_are_others_and_the_same_ones_again():
    def drawn():
        draws = _draws(4, rates={"1": 1.0})
        rows = draws.draw(3, step=7, first=0, drawn=[])
        return [*rows, *draws.draw(3, step=7, first=0, drawn=rows)]

    assert sorted(drawn()[:4]) == [0, 1, 2, 3]
    assert drawn() == drawn()


def test_pass_rates_follow_what_was_sampled_last():
    draws = _draws(5, rates={"0": 1.0})
    draws.rate({0: 0.0, 3: 0.25, 4: -2.0})
    assert draws.pass_rates == {"0": 0.5, "3": 0.25, "4": 0.0}
