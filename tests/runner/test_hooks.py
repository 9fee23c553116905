"""Reward functions on real rollouts: what they are given of a conversation, and what the store holds afterwards."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from mini_agentic_rl.emitter import find_final_reward, find_reward_spans, get_rewards_from_span
from mini_agentic_rl.emitter.reward import is_rollout_reward
from mini_agentic_rl.litagent import rollout
from mini_agentic_rl.rewards import (
    AccuracyReward,
    FormatReward,
    FunctionReward,
    RewardError,
    WeightedSum,
)
from mini_agentic_rl.runner import LitAgentRunner, RewardHook
from mini_agentic_rl.semconv import CompletionSpanAttributes as Key
from mini_agentic_rl.store.memory import InMemoryLightningStore
from mini_agentic_rl.types import Rollout, Span

QUESTION = [{"role": "system", "content": "s"}, {"role": "user", "content": "12*34?"}]
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "calculator", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "408"}
TOOLS = [{"type": "function", "function": {"name": "calculator", "parameters": {}}}]
TASK = {"question": "12*34?", "answer": "408", "prompts": "a field of this name does not matter"}


def llm_call(sent: list[Any], said: dict[str, Any], finish: str = "stop") -> Span:
    return Span.from_attributes(
        name=Key.SPAN_NAME,
        attributes={
            Key.INPUT_MESSAGES: json.dumps(sent),
            Key.OUTPUT_MESSAGES: json.dumps(said),
            Key.TOOL_DEFINITIONS: json.dumps(TOOLS),
            Key.FINISH_REASONS: [finish],
        },
    )


def says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


async def scored(hook: RewardHook, *calls: Span, task: Any = TASK) -> tuple[Rollout, list[Span]]:
    """A rollout whose agent made these calls, and its reward spans."""
    store = InMemoryLightningStore()

    @rollout
    def agent(task: Any) -> Sequence[Span]:
        return list(calls)

    runner = LitAgentRunner()
    with runner.run_context(agent=agent, store=store, hooks=[hook]):
        ended = await runner.step(task)
    return ended, find_reward_spans(list(await store.query_spans(ended.rollout_id)))


async def test_the_sum_and_its_parts_are_emitted_for_the_whole_rollout() -> None:
    hook = RewardHook(AccuracyReward(), FormatReward(), weights=[1.0, 0.1])
    turns = llm_call(QUESTION, CALL, "tool_calls"), llm_call([*QUESTION, CALL, RESULT], says("Answer: 408"))
    ended, spans = await scored(hook, *turns)
    assert ended.status == "succeeded"
    [span] = spans
    assert {found.name: found.value for found in get_rewards_from_span(span)} == {
        "reward": 1.1,
        "accuracy": 1.0,
        "format": 1.0,
    }
    assert find_final_reward(spans) == pytest.approx(1.1)
    assert is_rollout_reward(span)


async def test_a_function_gets_the_conversation_after_the_first_prompt_and_the_columns_of_the_task() -> None:
    seen: list[Any] = []

    def look(completions: Any, prompts: Any, ground_truth: Any, tools: Any, finish_reason: Any, **columns: Any) -> Any:
        seen.append((completions, prompts, ground_truth, tools, finish_reason, columns["question"]))
        return [0.5]

    turns = llm_call(QUESTION, CALL, "tool_calls"), llm_call([*QUESTION, CALL, RESULT], says("408"))
    await scored(RewardHook(look), *turns)
    assert seen == [([[CALL, RESULT, says("408")]], [QUESTION], ["408"], [TOOLS], ["stop"], ["12*34?"])]
    seen.clear()
    await scored(
        RewardHook(look), llm_call(QUESTION, CALL), llm_call([{"role": "user", "content": "other"}], says("7"))
    )
    assert seen[0][:2] == ([[says("7")]], [[{"role": "user", "content": "other"}]]), "another agent's conversation"


async def test_an_answer_that_was_cut_off_is_wrong_and_a_function_without_a_reward_does_not_count() -> None:
    def of_code(text: str) -> None:
        return None

    for finish, reward in (("length", 0.0), ("stop", 1.0)):
        calls = llm_call(QUESTION, says("Answer: 408"), finish)
        _, spans = await scored(RewardHook(AccuracyReward(), of_code), calls)
        assert find_final_reward(spans) == reward


async def test_without_a_call_or_where_a_function_has_no_reward_there_is_none() -> None:
    assert (await scored(RewardHook(AccuracyReward())))[1] == []
    with pytest.raises(ValueError, match="reward functions"):
        RewardHook()

    def fails(text: str) -> float:
        raise OSError("the judge is gone")

    hook = RewardHook(AccuracyReward(), fails)
    ended, spans = await scored(hook, llm_call(QUESTION, says("408")))
    assert (ended.status, spans) == ("succeeded", [])
    assert hook.reward.functions["fails"].errors == {"OSError": 1}
    skipping = RewardHook(WeightedSum([AccuracyReward(), fails], missing="skip"))
    assert find_final_reward((await scored(skipping, llm_call(QUESTION, says("408"))))[1]) == 1.0


async def test_a_task_that_lacks_what_the_reward_needs_fails_the_attempt_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(RewardError, match="ground_truth"):
        await scored(RewardHook(AccuracyReward()), llm_call(QUESTION, says("408")), task={"question": "?"})
    assert "the reward needs the column 'ground_truth'" in caplog.text


async def test_rollouts_are_scored_side_by_side() -> None:
    together = threading.Barrier(4)
    waits = FunctionReward(lambda text: float(together.wait(60) >= 0), name="waits for the others")
    ended = await asyncio.gather(*(scored(RewardHook(waits), llm_call(QUESTION, says("408"))) for _ in range(4)))
    assert [find_final_reward(spans) for _, spans in ended] == [1.0] * 4
