"""APO against a critic on a real socket: it improves the prompt, survives what a critic does wrong, and resumes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from critic_server import SEED_PROMPT, TASKS, WORDS, completion, critic, good_critic, optimise, polite_agent
from openai import AsyncOpenAI

from mini_agentic_rl import (
    APO,
    InMemoryLightningStore,
    PromptTemplate,
    SharedMemoryExecutionStrategy,
    Trainer,
    emit_message,
    prompt_rollout,
)
from mini_agentic_rl.errors import RunFailedError, UserError
from mini_agentic_rl.gateway.proxy import LLMProxy
from mini_agentic_rl.integrations.prompt_search.critic import why_unusable

SCRIPT = Path(__file__).parent / "critic_server.py"


def test_the_prompt_gets_better_round_by_round_and_the_best_is_kept():
    store = InMemoryLightningStore()
    with critic(good_critic) as (client, asked):
        algorithm = optimise(client, trainer={"store": store})
    best = algorithm.get_best_prompt()
    summary = algorithm.summary
    assert sum(word in best.template for word in WORDS) == 3
    assert best.template.startswith(SEED_PROMPT.template)
    assert (summary["score"], summary["rounds"]) == (0.75, 3)
    assert summary["best_prompt"] == best.template
    assert summary["unrewarded"] == {}
    assert {body["model"] for body in asked} == {"gpt-5-mini", "gpt-4.1-mini"}
    history = summary["history"]
    assert [row["version"] for row in history] == [f"v{index}" for index in range(len(history))]
    assert history[0]["score"] == 0.0
    for row in history[1:]:
        parent = next(other for other in history if other["version"] == row["parent"])
        assert parent["round"] < row["round"]
        assert row["template"] == f"{parent['template']} Do it {row['critique'].removeprefix('say: ')}."
    published = asyncio.run(store.get_latest_resources())
    assert published.resources == {"prompt": best}
    compared: dict[str, Counter[tuple[str, int]]] = {}  # the candidates of a round, on the same tasks
    for rollout in asyncio.run(store.query_rollouts()):
        if rollout.metadata["purpose"] == "round 1: validation":
            row = (rollout.input["question"], rollout.metadata["sampling_seed"])
            compared.setdefault(rollout.metadata["prompt"], Counter())[row] += 1
    first, *others = compared.values()
    assert len(first) == 3
    assert others
    assert all(other == first for other in others)


def test_the_critic_reads_tasks_rewards_and_what_the_agent_said():
    @prompt_rollout
    async def talkative(task, prompt_template):
        emit_message(f"thinking about {task['question']}")
        if task["question"] == "3 + 1":
            raise RuntimeError("cannot count to four")
        return 0.5

    with critic(good_critic) as (client, asked):
        algorithm = optimise(client, agent=talkative, beam_rounds=1, gradient_batch_size=6)
    questions = [body["messages"][-1]["content"] for body in asked if body["model"] == "gpt-5-mini"]
    for question in questions:
        assert question.count("### Attempt") == 6
        assert 'Task: {"question": "3 + 1"}' in question
        assert "thinking about 2 + 1" in question
        assert "Reward: 0.5" in question
        assert "cannot count to four" in question
    (reason,) = algorithm.summary["unrewarded"]
    assert "cannot count to four" in reason


def test_behind_a_proxy_the_critic_reads_the_conversation():
    def upstream(body):
        return completion("forty-two") if body["model"] == "answerer" else good_critic(body)

    @prompt_rollout
    async def asks(task, prompt_template, resources, rollout):
        llm = resources["llm"]
        url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        async with AsyncOpenAI(api_key="none", base_url=url) as client:
            said = prompt_template.format(question=task["question"])
            await client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": said}])
        return 0.5

    with critic(upstream) as (client, asked):
        proxy = LLMProxy(model_list=[{"model_name": "answerer", "base_url": str(client.base_url), "api_key": "none"}])
        optimise(client, agent=asks, beam_rounds=1, trainer={"llm_proxy": proxy})
        assert not proxy.is_running()
    questions = [body["messages"][-1]["content"] for body in asked if body["model"] == "gpt-5-mini"]
    assert questions
    for question in questions:
        assert question.count("[assistant] forty-two") == 2
        assert "[user] Answer" in question


def test_without_a_first_measurement_the_first_leader_is_the_best_and_long_transcripts_are_cut_in_the_middle():
    @prompt_rollout
    async def verbose(task, prompt_template):
        emit_message("begin " + "x" * 5000 + " end of it")
        return sum(word in prompt_template.template for word in WORDS) / len(WORDS)

    with critic(good_critic) as (client, asked):
        algorithm = optimise(
            client, agent=verbose, beam_rounds=1, run_initial_validation=False, transcript_characters=400
        )
    questions = [body["messages"][-1]["content"] for body in asked if body["model"] == "gpt-5-mini"]
    assert all("characters left out" in question and "end of it" in question for question in questions)
    assert max(map(len, questions)) < 2600
    summary = algorithm.summary
    assert summary["history"][0]["score"] is None
    assert summary["best_version"] != "v0"
    assert summary["score"] == 0.25


class Flaky:
    """Goes through what can go wrong, one thing a call, and answers well in between."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self.faults = [
            lambda: (429, {"error": {"message": "slow down"}}),
            lambda: (500, {"error": {"message": "down"}}),
            lambda: (200, {"object": "chat.completion"}),
            lambda: (200, "<html>not json"),
            lambda: (200, [1, 2]),
            lambda: completion(None),
            lambda: (time.sleep(0.8), completion("late"))[1],
        ]

    def __call__(self, body):
        with self._lock:
            call, self._calls = self._calls, self._calls + 1
        return good_critic(body) if call % 2 else self.faults[call // 2 % len(self.faults)]()


def test_whatever_a_critic_does_wrong_costs_only_its_candidate():
    with critic(Flaky()) as (client, _):
        algorithm = optimise(client, beam_width=3, branch_factor=3, critic_timeout=0.4, critic_concurrency=4)
    summary = algorithm.summary
    assert summary["rounds"] == 3
    assert summary["score"] > 0
    reasons = " | ".join(summary["rejected"])
    for word in ("RateLimitError", "InternalServerError", "malformed answer", "empty answer", "Timeout"):
        assert word in reasons


def test_a_client_that_the_agent_uses_too_is_one_clear_error():
    @prompt_rollout
    async def asking(task, prompt_template):
        question = f"<template>\n{prompt_template.template}\n</template>"
        await client.chat.completions.create(model="any", messages=[{"role": "user", "content": question}])
        return 0.5

    def unhurried(body):  # so that either side has to wait for its answer, which ties a connection to a loop
        time.sleep(0.03)
        return good_critic(body)

    with critic(unhurried) as (client, _), pytest.raises(UserError, match="an AsyncOpenAI of its own"):
        optimise(client, agent=asking)


def test_a_refusal_for_good_ends_the_run_with_the_setting_to_change():
    with (
        critic(lambda body: (401, {"error": {"message": "no"}})) as (client, _),
        pytest.raises(UserError, match=r"gradient_model: the critic refuses 'gpt-5-mini'.*api_key"),
    ):
        optimise(client)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("Answer.", "it lost the placeholder {question}"),
        ("Answer {question} for {person}.", "nothing fills in its placeholder {person}"),
        ('Answer {question} as {"a": 1}.', "nothing fills in its placeholder"),
        ("Answer {question} with a }.", "placeholders cannot be read"),
        ("Answer {question} or {}.", "nothing fills in its placeholder {}"),
        ("Answer {{question}}.", "it lost the placeholder {question}"),
        ("Answer {question!x}.", "it lost the placeholder {question}"),
        ("Answer {question} and {question.missing}.", "nothing fills in its placeholder {question.missing}"),
    ],
)
def test_a_template_that_cannot_be_filled_in_is_refused_with_the_reason(template, reason):
    assert reason in why_unusable(SEED_PROMPT, template)


def test_a_jinja_template_keeps_its_variables():
    seed = PromptTemplate(template="Answer {{ question }}.", engine="jinja")
    assert "it lost the placeholder {{ question }}" in why_unusable(seed, "Answer {{ other }}.")
    assert "cannot be read (line 1" in why_unusable(seed, "Answer {% if %}.")
    assert why_unusable(seed, "Answer {% if question %}{{ question }}{% endif %}.") is None


@pytest.mark.parametrize("mends", [False, True])
def test_a_rewritten_prompt_that_cannot_be_used_may_be_mended_once(mends):
    def careless(body):
        question = body["messages"][-1]["content"]
        if mends and "cannot be used" in question:
            return completion("```\nAnswer {question} carefully.\n```")
        return completion("<prompt>Answer.</prompt>") if "<criticism>" in str(body) else good_critic(body)

    with critic(careless) as (client, requests):
        algorithm = optimise(client, beam_rounds=1, beam_width=1, branch_factor=1)
    (second,) = [body for body in requests if len(body["messages"]) > 2]
    assert "it lost the placeholder {question}" in second["messages"][-1]["content"]
    rejected = algorithm.summary["rejected"]
    if mends:
        assert algorithm.get_best_prompt().template == "Answer {question} carefully."
        assert rejected == {}
    else:
        assert algorithm.get_best_prompt() == SEED_PROMPT
        assert "it lost the placeholder {question}" in next(iter(rejected))


def test_rollouts_that_never_get_their_turn_are_cancelled():
    @prompt_rollout
    async def slow(task, prompt_template):
        await asyncio.sleep(0.25)
        return 1.0

    store = InMemoryLightningStore()
    with critic(good_critic) as (client, _):
        trainer = {"store": store, "strategy": SharedMemoryExecutionStrategy(n_runners=1)}
        algorithm = optimise(client, agent=slow, beam_rounds=0, rollout_batch_timeout=0.4, trainer=trainer)
    statuses = Counter(rollout.status for rollout in asyncio.run(store.query_rollouts()))
    assert statuses["cancelled"] >= 4
    assert algorithm.summary["unrewarded"]["not ended within rollout_batch_timeout"] == statuses["cancelled"]


@pytest.mark.parametrize(("on_failure", "score"), [("zero", 5 / 6), ("drop", 1.0), ("retry", 1.0)])
def test_what_a_failed_rollout_counts_is_a_setting_of_the_algorithm_or_the_trainer(on_failure, score):
    @prompt_rollout
    async def shaky(task, prompt_template, rollout):
        if task["question"] == "0 + 1" and rollout.attempt.sequence_id == 1:
            raise RuntimeError("a bad day")
        return 1.0

    given = {"trainer": {"on_failure": "drop"}} if on_failure == "drop" else {"on_failure": on_failure}
    with critic(good_critic) as (client, _):
        algorithm = optimise(client, agent=shaky, beam_rounds=0, **given)
    assert algorithm.summary["score"] == pytest.approx(score)
    assert sum(algorithm.summary["unrewarded"].values()) == (on_failure != "retry")


def test_a_search_without_any_reward_fails_and_calls_no_prompt_better():
    @prompt_rollout
    async def unrewarded(task, prompt_template):
        return None

    cause = "rollouts failed: no reward: neither the agent nor a hook gave one"
    with critic(good_critic) as (client, _):
        algorithm = APO(client, beam_rounds=1, beam_width=2, branch_factor=2)
        trainer = Trainer(algorithm=algorithm, n_runners=4, initial_resources={"prompt": SEED_PROMPT})
        with pytest.raises(RunFailedError, match=cause):
            trainer.fit(unrewarded, TASKS, val_dataset=TASKS)
    assert algorithm.get_best_prompt() == SEED_PROMPT
    assert algorithm.summary["score"] is None


def _without_times(algorithm):
    return json.loads(json.dumps({key: value for key, value in algorithm.summary.items() if key != "seconds"}))


def test_a_killed_search_ends_as_an_unbroken_one(tmp_path):
    killed = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), "2"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir())[-1] == "step_1"
    with critic(good_critic) as (client, _):
        unbroken = optimise(client)
        resumed = optimise(client, trainer={"output_dir": tmp_path, "store": None, "resume": True})
    assert _without_times(resumed) == _without_times(unbroken)
    assert unbroken.summary["rounds"] == 3
    for written in ("checkpoints/step_3/best_prompt.txt", "prompt/best_prompt.txt"):
        assert (tmp_path / written).read_text() == unbroken.get_best_prompt().template


def test_a_finished_search_that_is_resumed_only_gives_its_result_and_not_for_another_prompt(tmp_path):
    with critic(good_critic) as (client, asked):
        first = optimise(client, beam_rounds=1, trainer={"output_dir": tmp_path})
        calls = len(asked)
        again = optimise(client, beam_rounds=1, trainer={"output_dir": tmp_path, "resume": True})
        assert len(asked) == calls
        assert _without_times(again) == _without_times(first)
        other = {"resume": True, "initial_resources": {"prompt": PromptTemplate(template="Say {question}.")}}
        with pytest.raises(UserError, match="started from another prompt"):
            optimise(client, beam_rounds=1, trainer={"output_dir": tmp_path, **other})


def test_what_is_missing_or_ambiguous_is_told_with_the_setting_to_change():
    with critic(good_critic) as (client, _):
        for resources, settings, message in (
            ({}, {}, "no prompt template: give Trainer"),
            ({"a": SEED_PROMPT, "b": SEED_PROMPT}, {}, "templates a, b: choose one with APO"),
            ({"a": SEED_PROMPT}, {"prompt_name": "c"}, "prompt_name: 'c'"),
        ):
            with pytest.raises(UserError, match=message):
                optimise(client, trainer={"initial_resources": resources}, **settings)
        algorithm = APO[dict[str, str]](client)
        with pytest.raises(ValueError, match="APO has not run"):
            algorithm.get_best_prompt()
        trainer = Trainer(algorithm=algorithm, initial_resources={"prompt": SEED_PROMPT}, n_runners=1)
        with pytest.raises(UserError, match="val_dataset"):
            trainer.fit(polite_agent, TASKS)
        with pytest.raises(ValueError, match="beam_widht"):
            APO(client, beam_widht=3)


def test_one_of_several_prompts_is_chosen_by_name_and_the_others_stay():
    other = PromptTemplate(template="never changed")

    @prompt_rollout
    async def agent(task, resources, prompt_template):
        assert resources["other"] == other
        return float("carefully" in resources["prompt"].template)

    store = InMemoryLightningStore()
    with critic(good_critic) as (client, _):
        algorithm = optimise(
            client,
            agent=agent,
            prompt_name="prompt",
            beam_rounds=1,
            trainer={"store": store, "initial_resources": {"other": other, "prompt": SEED_PROMPT}},
        )
    assert algorithm.summary["score"] == 1.0
    latest = asyncio.run(store.get_latest_resources())
    assert latest.resources == {"other": other, "prompt": algorithm.get_best_prompt()}
