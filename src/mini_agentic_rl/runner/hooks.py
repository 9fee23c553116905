"""Hooks that ship with the runner: one logs every rollout, one scores it with reward functions."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..adapter import parsed_messages
from ..emitter import emit_reward, find_final_reward
from ..logging import log_visibly
from ..rewards import RewardFunction, WeightedSum
from ..semconv import AGL_EXCEPTION, FAILURE_REASON
from ..semconv import CompletionSpanAttributes as Key
from ..types import AttemptedRollout, Hook, Rollout, Span

logger = logging.getLogger(__name__)


class LoggingHook(Hook):
    """Log each rollout at level INFO: its start, and at its end the reward, the duration and the number of LLM calls.

    If logging is not set up, the lines go to standard error. Put this hook last, so that it sees the rewards of the
    hooks before it.
    """

    async def on_rollout_start(self, *, rollout: Rollout) -> None:  # type: ignore[override]  # names what it needs
        log_visibly(logger, "%s starts", _label(rollout))

    async def on_rollout_end(  # type: ignore[override]  # names what it needs
        self, *, rollout: Rollout, spans: Sequence[Span]
    ) -> None:
        reward = find_final_reward(spans)
        responses = {span.attributes.get(Key.RESPONSE_ID, span.span_id) for span in spans if span.name == Key.SPAN_NAME}
        errors = [span.attributes.get(FAILURE_REASON, "") for span in spans if span.name == AGL_EXCEPTION]
        start = rollout.attempt.start_time if isinstance(rollout, AttemptedRollout) else rollout.start_time
        log_visibly(
            logger,
            "%s ends: reward %s, %.2f s, %d LLM calls%s",
            _label(rollout),
            "none" if reward is None else f"{reward:g}",
            time.time() - start,
            len(responses),
            f", {errors[-1]}" if errors and errors[-1] else "",
        )


def _label(rollout: Rollout) -> str:
    number = f" attempt {rollout.attempt.sequence_id}" if isinstance(rollout, AttemptedRollout) else ""
    return f"rollout {rollout.rollout_id}{number} ({rollout.mode or 'no mode'})"


_RESERVED = ("completions", "prompts")
"""Arguments of reward functions that no field of a task may replace."""


class RewardHook(Hook):
    """Score a rollout by its messages, and emit the weighted sum together with its parts by name.

    The prompt is the input of the first LLM call, the completion everything after it up to the last answer. The columns
    are the fields of the task (`answer` also as `ground_truth`), `tools`, and `finish_reason`, which is "length" if the
    last answer was cut off. Without an LLM call, or if the sum is None, nothing is emitted: the rollout has no reward
    and is not trained on.

    Functions run in a thread, so a function that waits for a judge or a service delays no other rollout.
    """

    def __init__(self, *functions: RewardFunction, weights: Sequence[float] | None = None) -> None:
        """Sum `functions` with `weights`, 1 each by default; a single `WeightedSum` is used as it is.

        Raises:
            ValueError: no function, or another number of weights.
        """
        only = functions[0] if len(functions) == 1 else None
        self.reward = only if isinstance(only, WeightedSum) else WeightedSum(functions, weights)

    async def on_rollout_end(  # type: ignore[override]  # names what it needs
        self, *, rollout: Rollout, spans: Sequence[Span]
    ) -> None:
        """Emit the reward.

        Raises:
            RewardError: the task lacks a field that a function needs.
        """
        calls = sorted(
            (span for span in spans if Key.OUTPUT_MESSAGES in span.attributes), key=lambda span: span.sequence_id
        )
        if not calls:
            return
        last = calls[-1]
        prompt, completion = _prompt_and_completion(calls[0], last)
        reasons = last.attributes.get(Key.FINISH_REASONS) or ()
        columns = {
            **_columns(rollout.input),
            "tools": [parsed_messages(last, Key.TOOL_DEFINITIONS)],
            "finish_reason": [str(reasons[-1]) if reasons else None],
        }
        (total,), lists = await asyncio.to_thread(self.reward.sums_and_parts, [completion], [prompt], columns)
        if total is not None:
            known = {name: score for name, (score,) in lists.items() if score is not None}
            emit_reward({**known, self.reward.name: total}, primary_key=self.reward.name, final=True)


def _prompt_and_completion(first: Span, last: Span) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the messages up to the end of the prompt, and those behind it, of the conversation of the last LLM call.

    The prompt is the input of the first call if the last call continues it, else the input of the last call.
    """
    sent, opened = parsed_messages(last, Key.INPUT_MESSAGES), parsed_messages(first, Key.INPUT_MESSAGES)
    end = len(opened) if sent[: len(opened)] == opened else len(sent)
    return sent[:end], [*sent[end:], *parsed_messages(last, Key.OUTPUT_MESSAGES)[-1:]]


def _columns(task: Any) -> dict[str, list[Any]]:
    """Return the fields of a task, each as a column of one row."""
    if not isinstance(task, Mapping):
        return {}
    columns = {str(name): [value] for name, value in task.items() if name not in _RESERVED}
    if "answer" in columns:
        columns.setdefault("ground_truth", columns["answer"])
    return columns
