"""A math agent with a calculator.

`MathAgent` calls the model until it answers without a tool call; `MathRewardHook` scores that answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ...emitter import emit_reward
from ...environments import Demonstrations, Message, Recipe, converse, endpoint_of, find_llm
from ...litagent import LitAgent
from ...rewards import ends_cleanly, has_template_tags, is_correct
from ...semconv import CompletionSpanAttributes
from ...tools import CALCULATOR, answer_calls
from ...types import Hook, NamedResources, PromptTemplate, Rollout, Span
from .demonstrations import MAX_TURNS, can_be_shown, demonstration, opening, small_talk_conversations, tools_for


def math_recipe(*, max_turns: int = MAX_TURNS) -> Recipe:
    """Return the agent, its reward, and its demonstrations (without the plan in words)."""
    demonstrations = Demonstrations(
        partial(demonstration, think=False), tools_for, can_be_shown, small_talk_conversations()
    )
    return Recipe(MathAgent(max_turns=max_turns), [MathRewardHook()], demonstrations)


class MathAgent(LitAgent[Any]):
    """Answers `task["question"]` with calculator calls.

    A task of the style "text" (`load_task_dataset("text:…")`) is answered in words, without the calculator.
    """

    def __init__(self, *, max_turns: int = MAX_TURNS, system_prompt: str | None = None) -> None:
        """`max_turns` limits the model calls of a rollout. The default `system_prompt` depends on the task's style.

        Raises:
            ValueError: `max_turns` is below 1.
        """
        super().__init__()
        if max_turns < 1:
            raise ValueError(f"max_turns must be 1 or more, not {max_turns}")
        self.max_turns = max_turns
        self.system_prompt = system_prompt

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Rollout) -> None:
        """Run one conversation; the hook gives the reward.

        Raises:
            ValueError: the resources hold no LLM, or several and none named "llm", or the task has no question.
            openai.OpenAIError: the endpoint refused a call or could not be reached.
        """
        endpoint = endpoint_of(find_llm(resources), rollout)
        template = resources.get("prompt")  # of a prompt search
        system_prompt = template.format() if isinstance(template, PromptTemplate) else self.system_prompt
        tools = tools_for(task)

        async def follow(reply: Message) -> list[Message]:
            return answer_calls(CALCULATOR, reply) if tools else []

        await converse(endpoint, opening(task, system_prompt), follow, tools=tools, max_turns=self.max_turns)


class MathRewardHook(Hook):
    """Scores a rollout by its last message: 1 for the right answer in a clean reply, `unclean` for the right answer in
    another reply, else 0.

    A message that was cut off at its token limit or calls a tool is wrong. A reply is clean if it ends in its only line
    "Answer: …", and no message of the conversation has tags of a chat template. A rollout without a recorded model call
    gets no reward, rather than 0.

    Emits `reward`, and also `correct`, `clean` and `tool`, each 0 or 1.
    """

    def __init__(self, *, unclean: float = 0.5) -> None:
        """`unclean` is the reward of a right answer in a reply that is not clean."""
        self.unclean = unclean

    async def on_rollout_end(self, *, agent: Any, runner: Any, rollout: Rollout, spans: Sequence[Span]) -> None:
        """Emit the reward, unless no model call was recorded.

        Raises:
            ValueError: the task has no answer.
        """
        scores = await self.scores(rollout, spans)
        if scores is not None:
            emit_reward(scores, primary_key="reward", final=True)

    async def scores(self, rollout: Rollout, spans: Sequence[Span]) -> dict[str, float] | None:
        """Return the reward and its parts by name, or None if no model call was recorded.

        Raises:
            ValueError: the task has no answer.
        """
        completions = (span for span in spans if CompletionSpanAttributes.OUTPUT_MESSAGES in span.attributes)
        calls = sorted(completions, key=lambda span: span.sequence_id)
        if not calls:
            return None
        task = rollout.input
        gold = task.get("answer") if isinstance(task, Mapping) else None
        if gold is None:
            raise ValueError(f'the task of rollout {rollout.rollout_id} has no "answer" to compare with')
        text = final_text(calls[-1])
        right = text is not None and await asyncio.to_thread(is_correct, text, gold)
        messages = [_output_message(call) for call in calls]
        contents = [message.get("content") for message in messages]
        has_tags = any(has_template_tags(content) for content in contents if isinstance(content, str))
        clean = text is not None and ends_cleanly(text) and not has_tags
        return {
            "reward": right * (1.0 if clean else self.unclean),
            "correct": float(right),
            "clean": float(clean),
            "tool": float(any(message.get("tool_calls") for message in messages)),
        }


def final_text(span: Span) -> str | None:
    """Return the answer of a completion span; None if it was cut off, calls a tool or has no text."""
    message = _output_message(span)
    if message.get("tool_calls") or "length" in (span.attributes.get(CompletionSpanAttributes.FINISH_REASONS) or ()):
        return None
    content = message.get("content")
    return content if isinstance(content, str) and content.strip() else None


def _output_message(span: Span) -> dict[str, Any]:
    message = json.loads(span.attributes[CompletionSpanAttributes.OUTPUT_MESSAGES])
    if isinstance(message, list):  # the GenAI convention is a list of messages; a choice has one
        message = message[-1] if message else {}
    if not isinstance(message, dict):
        raise ValueError(f"span {span.span_id} holds no message: {str(message)[:80]!r}")
    return message
