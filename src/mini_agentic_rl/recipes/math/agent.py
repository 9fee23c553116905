"""A math agent with a calculator: plain OpenAI client code that knows nothing of training but its `base_url`.

`MathAgent` talks to the model until it answers without calling a tool; `MathRewardHook` scores that answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from openai.types.chat import (
    ChatCompletionFunctionToolParam,
    ChatCompletionMessageParam,
)

from ...litagent import LitAgent
from ...rewards import has_answer_line, is_correct, weighted_sum
from ...semconv import CompletionSpanAttributes
from ...types import Hook, NamedResources, Rollout, Span
from ..endpoint import find_llm, rollout_client
from ..recipe import Demonstrations, Recipe
from .conversation import SYSTEM_PROMPT, TOOLS, demonstration, opening, use_tool


def math_recipe() -> Recipe:
    """Return the agent, its reward, and its conversations to imitate (without the thought in words)."""
    demonstrations = Demonstrations(partial(demonstration, think=False), TOOLS, needs="expression")
    return Recipe(MathAgent(), [MathRewardHook()], demonstrations)


class MathAgent(LitAgent[Any]):
    """Answers `task["question"]`, calling the calculator as often as the model asks for it."""

    def __init__(self, *, max_turns: int = 4, system_prompt: str = SYSTEM_PROMPT) -> None:
        """`max_turns` is the most model calls of a rollout; the last one may end without an answer.

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
        llm = find_llm(resources)
        client = rollout_client(llm, rollout)
        messages = opening(task, self.system_prompt)
        for _ in range(self.max_turns):
            completion = await client.chat.completions.create(
                model=llm.model,
                messages=cast(list[ChatCompletionMessageParam], messages),
                tools=cast(list[ChatCompletionFunctionToolParam], TOOLS),
                **llm.sampling_parameters,
            )
            reply = completion.choices[0].message
            messages.append(reply.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
            if not reply.tool_calls:
                return
            for call in reply.tool_calls:
                if call.type == "function":  # the only kind that was offered
                    result = use_tool(call.function.name, call.function.arguments)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


class MathRewardHook(Hook):
    """Scores the last message of a rollout against `task["answer"]`: 1 when it is right, else 0.

    Only a finished text counts as an answer: a message cut off by its token limit and a message that still calls a tool
    are wrong. A rollout without a recorded model call gets no reward at all, rather than 0.
    """

    def __init__(self, *, tool_bonus: float = 0.0, format_bonus: float = 0.0) -> None:
        """`tool_bonus` is added when a tool was called, `format_bonus` when the reply ends in one "Answer: …" line."""
        self.tool_bonus = tool_bonus
        self.format_bonus = format_bonus

    async def on_rollout_end(self, *, agent: Any, runner: Any, rollout: Rollout, spans: Sequence[Span]) -> float | None:
        """Return the reward, or None when no model call was recorded.

        Raises:
            ValueError: the task has no answer.
        """
        calls = sorted((span for span in spans if _is_completion(span)), key=lambda span: span.sequence_id)
        if not calls:
            return None
        task = rollout.input
        gold = task.get("answer") if isinstance(task, Mapping) else None
        if gold is None:
            raise ValueError(f'the task of rollout {rollout.rollout_id} has no "answer" to compare with')
        text = final_text(calls[-1])
        right = text is not None and await asyncio.to_thread(is_correct, text, gold)
        scores = {
            "correct": float(right),
            "tool": float(any(_output_message(call).get("tool_calls") for call in calls)),
            "format": float(text is not None and has_answer_line(text)),
        }
        return weighted_sum(scores, {"correct": 1.0, "tool": self.tool_bonus, "format": self.format_bonus})


def final_text(span: Span) -> str | None:
    """Return the answer that a completion span holds; None when it was cut off, calls a tool or has no text."""
    message = _output_message(span)
    if message.get("tool_calls") or "length" in (span.attributes.get(CompletionSpanAttributes.FINISH_REASONS) or ()):
        return None
    content = message.get("content")
    return content if isinstance(content, str) and content.strip() else None


def _is_completion(span: Span) -> bool:
    return CompletionSpanAttributes.OUTPUT_MESSAGES in span.attributes


def _output_message(span: Span) -> dict[str, Any]:
    message = json.loads(span.attributes[CompletionSpanAttributes.OUTPUT_MESSAGES])
    if isinstance(message, list):  # the GenAI convention is a list of messages; a choice has one
        message = message[-1] if message else {}
    if not isinstance(message, dict):
        raise ValueError(f"span {span.span_id} holds no message: {str(message)[:80]!r}")
    return message
