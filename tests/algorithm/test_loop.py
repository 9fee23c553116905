"""The whole loop on a tiny model: what it learns, records and reports, and what failing and idle runs say."""

from __future__ import annotations

import asyncio
import json
import logging

import openai
import pytest
from letters import TASKS, AnyReward, Asking, CountLetters, Kept, Letters, algorithm

from mini_agentic_rl import AgentOpsTracer, InMemoryLightningStore, LitAgent, MiniGRPO, Trainer
from mini_agentic_rl.algorithm import sampling
from mini_agentic_rl.algorithm.sampling import IdleSteps, LostSteps, SampledStep, tail_of
from mini_agentic_rl.errors import RunFailedError
from mini_agentic_rl.gateway.settings import GatewayLimits
from mini_agentic_rl.metrics import MetricsLogger
from mini_agentic_rl.policy import LearnerSettings
from mini_agentic_rl.semconv import AGL_EXCEPTION, ROLLOUT_BUDGET_EXCEEDED
from mini_agentic_rl.types import Rollout
from tiny import tiny_model, tiny_tokenizer


def test_a_tiny_model_learns_to_the_threshold(tmp_path):
    kept = Kept()
    trained = algorithm(total_steps=9, learner=LearnerSettings(learning_rate=6e-3))
    Trainer(
        algorithm=trained,
        hooks=[CountLetters()],
        store=InMemoryLightningStore(),
        n_runners=32,
        output_dir=tmp_path,
        logger=kept,
    ).fit(Letters(), TASKS, val_dataset=TASKS)
    before, after = trained.summary["accuracy"]
    assert (before["name"], before["count"], before["correct"]) == ("before", 8, 0)
    assert (after["name"], after["count"]) == ("after RL", 8)
    assert after["correct"] >= 6
    steps = [row for row in kept.rows if "reward/mean" in row]
    assert len(steps) == 9
    assert max(row.get("mismatch/mean_abs", 0.0) for row in steps) < 1e-4
    assert trained.summary["untrained"] == {}


def test_a_step_that_takes_long_tells_how_far_it_is(monkeypatch):
    monkeypatch.setattr(sampling, "SECONDS_BETWEEN_NOTES", 0.0)
    kept = Kept()
    trained = algorithm(total_steps=2, tasks_per_step=2, samples_per_prompt=2)
    Trainer(algorithm=trained, hooks=[AnyReward()], n_runners=1, logger=kept).fit(Letters(), TASKS)
    assert {"step 1: 4 of 4 rollouts", "step 2: 4 of 4 rollouts"} <= set(kept.notes)


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
    store = InMemoryLightningStore()
    trained = algorithm(total_steps=1, tasks_per_step=2, samples_per_prompt=2, seed=3)
    with pytest.raises(RunFailedError, match="all 4 rollouts of the training failed"):
        Trainer(algorithm=trained, store=store, n_runners=4).fit(Quiet(), TASKS[:2])
    reasons = trained.summary["untrained"]
    assert sum(reasons.values()) == 4
    assert any("no LLM call recorded" in reason for reason in reasons)
    assert any("no way" in reason for reason in reasons)
    ended = asyncio.run(store.query_rollouts())
    assert sorted({rollout.status for rollout in ended}) == ["failed", "succeeded"]


def test_nothing_to_train_on_is_said_at_once():
    with pytest.raises(ValueError, match="train_dataset is empty"):
        Trainer(algorithm=algorithm(), n_runners=1).fit(Letters(), [])


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


def test_a_training_names_the_most_frequent_error_and_its_folder_holds_no_finished_run(tmp_path, caplog):
    trainer = Trainer(
        algorithm=algorithm(total_steps=2, **SMALL), n_runners=4, output_dir=tmp_path, logger=MetricsLogger()
    )
    cause = "all 8 rollouts of the training failed: attempt failed: the agent: ConnectionError: cannot connect to port"
    with caplog.at_level(logging.WARNING), pytest.raises(RunFailedError, match=cause):
        trainer.fit(Broken(), TASKS, val_dataset=TASKS)
    assert not (tmp_path / "summary.json").exists()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step_0"]
    said = [record.name.rpartition(".")[2] for record in caplog.records if "cannot connect" in record.message]
    assert sorted(said) == ["attempt", "rollouts"]


def test_a_run_is_mended_and_resumed_after_it_has_failed(tmp_path):
    class Letters(Broken):
        pass

    for agent in (Letters, globals()["Letters"]):
        trainer = Trainer(
            algorithm=algorithm(total_steps=1, **SMALL),
            hooks=[CountLetters()],
            n_runners=4,
            output_dir=tmp_path,
            resume=True,
            logger=MetricsLogger(),
        )
        if agent is Letters:
            with pytest.raises(RunFailedError):
                trainer.fit(agent(), TASKS)
        else:
            trainer.fit(agent(), TASKS)
    assert json.loads((tmp_path / "summary.json").read_text())["untrained"] == {}


def test_what_fails_again_and_again_is_told_once_and_counted_at_the_end(caplog):
    kept = Kept()
    trainer = Trainer(algorithm=algorithm(total_steps=4, **SMALL), hooks=[CountLetters()], n_runners=4, logger=kept)
    with caplog.at_level(logging.WARNING):
        trainer.fit(Sometimes(), TASKS)
    assert sum("no route to host" in record.message for record in caplog.records) == 2
    assert any("of 16 rollouts were not trained" in note and "no route to host" in note for note in kept.notes)


def test_the_parameters_that_are_trained_are_told_at_the_start():
    kept = Kept()
    tokenizer = tiny_tokenizer()
    model = tiny_model(len(tokenizer))
    whole = sum(parameter.numel() for parameter in model.parameters())
    trained = MiniGRPO(model, tokenizer, total_steps=1, max_new_tokens=2, **SMALL)
    Trainer(algorithm=trained, hooks=[CountLetters()], n_runners=4, logger=kept).fit(Letters(), TASKS)
    counted = trained.summary["parameters"]
    assert counted["all"] == whole + counted["trained"]
    share = f"{100 * counted['trained'] / counted['all']:.2f} %"
    assert trained.summary["kernels"] == "torch"  # the tiny model is in float32
    assert f"training {counted['trained']:,} of {counted['all']:,} parameters ({share})" in kept.notes


def test_the_gateway_alone_records_the_calls_that_it_answers():
    store = InMemoryLightningStore()
    trainer = Trainer(
        algorithm=algorithm(total_steps=1, tasks_per_step=1, samples_per_prompt=2, max_new_tokens=2, eval_size=1),
        hooks=[CountLetters()],
        n_runners=2,
        tracer=AgentOpsTracer(),
        store=store,
        logger=MetricsLogger(),
    )
    trainer.fit(Letters(), TASKS[:1], val_dataset=TASKS[:1])

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
    kept = Kept()
    trained = algorithm(total_steps=2, tasks_per_step=2, samples_per_prompt=3)
    tasks = [task for task in TASKS if task["word"] in ("hi", "go")]
    Trainer(algorithm=trained, hooks=[CountLetters()], n_runners=6, logger=kept).fit(AsksAgain(), tasks)
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
    store, kept = InMemoryLightningStore(), Kept()
    trained = algorithm(
        total_steps=1,
        tasks_per_step=2,
        samples_per_prompt=2,
        seed=3,
        limits=GatewayLimits(max_rollout_calls=2),
    )
    Trainer(algorithm=trained, hooks=[CountLetters()], store=store, n_runners=4, logger=kept).fit(Runaway(), TASKS[:2])
    assert trained.summary["untrained"] == {f"attempt failed: {REASON}": 2}
    (step,) = [row for row in kept.rows if "rollout/over_budget" in row]
    assert (step["rollout/over_budget"], step["rollout/failed"]) == (4, 2)
    for rollout in asyncio.run(store.query_rollouts()):
        spans = list(asyncio.run(store.query_spans(rollout.rollout_id)))
        marks = [span for span in spans if span.attributes.get("exception.type") == ROLLOUT_BUDGET_EXCEEDED]
        assert [(mark.name, mark.attributes["exception.message"]) for mark in marks] == [(AGL_EXCEPTION, REASON)]
        assert sum("response_token_ids" in span.attributes for span in spans) == 2


def _ended(*times: float) -> list[Rollout]:
    return [Rollout(rollout_id=str(n), input=None, start_time=0, end_time=time) for n, time in enumerate(times)]


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
    ],
)
def test_the_tail_is_the_time_of_the_last_eighth_of_the_rollouts(ends, seconds):
    assert tail_of(_ended(*ends), 1000) == seconds


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_a_clock_that_is_set_makes_no_tail_longer_than_the_step(jump):
    assert 0 <= tail_of(_ended(1, 2, 3, 4 + jump), 4.5) <= 4.5


UNSOLVED = {"groups/with_signal": 0.0, "reward/mean": 0.0, "reward/std": 0.0}


def _lost(reason: str, count: int = 12) -> SampledStep:
    return SampledStep({}, (), {reason: count}, count, 0, {}, {})


@pytest.mark.parametrize(
    ("mean", "std", "seen", "advice"),
    [
        (1.0, 0.0, "all rewards are 1:", "take harder tasks"),
        (0.0, 0.0, "all rewards are 0:", "take easier tasks, imitate more examples first"),
        (0.5, 0.0, "all rewards are 0.5:", "whether the reward tells answers apart"),
        (0.5, 0.5, "the same reward, though tasks differ (mean 0.5)", "solved now and then"),
    ],
)
def test_the_advice_is_for_the_cause(mean, std, seen, advice):
    idle = IdleSteps()
    said = str(idle.after_step({"reward/mean": mean, "reward/std": std}))
    assert seen in said
    assert advice in said
    assert ("easier" in said) <= (mean < 1)
    assert advice in str(idle.at_the_end())


def test_a_step_of_a_resumed_run_is_told_by_its_number_in_the_whole_run():
    assert str(IdleSteps(done=7).after_step(UNSOLVED)).startswith("nothing to learn from in step 8: ")


def test_each_cause_is_told_once_and_all_are_counted():
    idle = IdleSteps()
    assert idle.after_step({**UNSOLVED, "loss": 0.1}) is None
    assert idle.at_the_end() is None
    said = str(idle.after_step({**UNSOLVED, "rollout/truncated": 1.0}))
    assert "100 % of the rollouts ended at `max_new_tokens`" in said
    assert idle.after_step(UNSOLVED) is None
    assert "all rewards are 1" in str(idle.after_step({**UNSOLVED, "reward/mean": 1.0}))
    assert "3 of 4 steps had nothing to learn from (in 2 for one cause): take easier tasks" in str(idle.at_the_end())


def test_a_step_of_several_adapters_is_not_idle_where_one_of_them_learnt():
    assert IdleSteps().after_step({**UNSOLVED, "writer/loss": 0.2}) is None


def test_a_step_without_any_rollout_has_other_reasons():
    assert IdleSteps().after_step({"groups/count": 2.0, "rollout/failed": 8.0}) is None


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


def test_a_few_lost_rollouts_end_nothing():
    lost = LostSteps()
    for _ in range(7):
        lost.after_step(_lost("no reward", 3))
