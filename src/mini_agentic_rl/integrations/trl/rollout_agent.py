"""A rollout function of TRL's as an agent: prompts in, ids and log-probabilities out, and these are what is trained.

TRL calls the function with all prompts of a step. Here the rollouts that wait while it runs are its next batch, one
call at a time, as it expects. Where a batch fails, each of its rollouts is run alone, so that one which cannot be run
costs no other.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...emitter import emit_reward
from ...environments import REWARD, find_llm
from ...litagent import LitAgent
from ...semconv import CompletionSpanAttributes as Key
from ...types import LLM, NamedResources, Rollout, Span, TraceStatus
from .rewards import TRLRewards
from .rollout_trainer import RolloutTrainer

RolloutFunction = Callable[[list[Any], Any], Mapping[str, Any]]

_NEEDED = ("prompt_ids", "completion_ids", "logprobs")
_MASK = "env_mask"
_MOST = 256
"""Rollouts in one call of the function."""


@dataclass
class _Waiting:
    prompt: Any
    llm: LLM
    future: asyncio.Future[_Row]


@dataclass(frozen=True)
class _Row:
    """The rollout function's answer to one prompt."""

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    mask: list[int]
    """1 where the token was sampled, 0 where the environment said it."""
    extra: Mapping[str, Any]
    trainer: RolloutTrainer
    """Knows how its tokens were sampled."""


class RolloutFunctionAgent(LitAgent[Any]):
    """Runs a `rollout_func` of TRL's, and scores what it returns.

    Args:
        rollout_func: called as `rollout_func(prompts, trainer)`; for the trainer see `RolloutTrainer`.
        processing_class: the model's tokenizer.
        reward_funcs: reward functions of TRL's, which get the function's further fields as columns.
        reward_weights: a factor for each of these.

    Raises:
        UserError: there is no reward function, or one cannot be one.
    """

    def __init__(
        self,
        rollout_func: RolloutFunction,
        processing_class: Any,
        reward_funcs: Any,
        *,
        reward_weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.rollout_func = rollout_func
        self.processing_class = processing_class
        self.rewards = TRLRewards(reward_funcs, reward_weights)
        self._waiting: list[_Waiting] = []
        self._running: asyncio.Task[None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what waits: a process has calls of its own."""
        return {**self.__dict__, "_waiting": [], "_running": None}

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Rollout) -> list[Span]:
        """Run one rollout; the spans are the calls that the policy is trained on.

        Raises:
            ValueError: the task has no prompt, or what the function returned does not fit together.
            Exception: whatever the function raised.
        """
        prompt = task.get("prompt")
        if not prompt:
            raise ValueError(f'a row needs a "prompt"; its columns are {", ".join(map(str, task))}')
        row = await self._row(prompt, find_llm(resources))
        text = self.processing_class.decode(row.completion_ids, skip_special_tokens=True)
        completion = text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
        columns = {**task, **row.extra}
        scores = await asyncio.to_thread(
            self.rewards.score, prompt, completion, columns, completion_ids=row.completion_ids
        )
        if not scores:
            raise ValueError("no reward function gave a reward (all returned None)")
        rollout.metadata["output"] = text
        emit_reward(scores, primary_key=REWARD, final=True)
        return _spans(row, prompt, rollout, self.processing_class)

    async def _row(self, prompt: Any, llm: LLM) -> _Row:
        waiting = _Waiting(prompt, llm, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._running is None or self._running.done() or self._running.get_loop() is not waiting.future.get_loop():
            self._running = asyncio.create_task(self._run_all())
        return await waiting.future

    async def _run_all(self) -> None:
        await asyncio.sleep(0.01)  # those that begin together come together
        while self._waiting:
            first = self._waiting[0]
            batch = [one for one in self._waiting if one.llm == first.llm][:_MOST]
            self._waiting = [one for one in self._waiting if one not in batch]
            batch = [one for one in batch if not one.future.done()]  # a rollout may have been given up
            if batch and not await self._run(batch) and len(batch) > 1:
                for one in batch:
                    await self._run([one])

    async def _run(self, batch: Sequence[_Waiting]) -> bool:
        """Call the function once, and answer those who wait; return False where it failed for several."""
        trainer = RolloutTrainer(batch[0].llm, self.processing_class)
        try:
            output = await asyncio.to_thread(self.rollout_func, [one.prompt for one in batch], trainer)
            rows = _rows(output, len(batch), len(self.processing_class), trainer)
        except Exception as error:  # the user's function may fail in any way
            if len(batch) == 1 and not batch[0].future.done():
                batch[0].future.set_exception(error)
            return False
        for one, row in zip(batch, rows, strict=True):
            if not one.future.done():
                one.future.set_result(row)
        return True


def _rows(output: Any, count: int, vocabulary: int, trainer: RolloutTrainer) -> list[_Row]:
    """Read what a rollout function returned.

    Raises:
        ValueError: something is missing, or does not fit together.
    """
    if not isinstance(output, Mapping) or not all(name in output for name in _NEEDED):
        told = sorted(output) if isinstance(output, Mapping) else type(output).__name__
        raise ValueError(f"rollout_func must return a dict with {', '.join(_NEEDED)}, not {told}")
    for name in (*_NEEDED, *([_MASK] if _MASK in output else [])):
        if len(output[name]) != count:
            raise ValueError(f"rollout_func returned {len(output[name])} {name} for {count} prompts")
    rows = []
    for at in range(count):
        prompt_ids = _ids(output["prompt_ids"][at], "prompt_ids", vocabulary)
        completion_ids = _ids(output["completion_ids"][at], "completion_ids", vocabulary)
        logprobs = [_logprob(value) for value in output["logprobs"][at]]
        mask = [int(value) for value in output[_MASK][at]] if _MASK in output else [1] * len(completion_ids)
        for name, found in (("logprobs", logprobs), (_MASK, mask)):
            if len(found) != len(completion_ids):
                raise ValueError(f"rollout_func returned {len(found)} {name} for {len(completion_ids)} completion_ids")
        bad = next((value for value, sampled in zip(logprobs, mask, strict=True) if sampled and not _fits(value)), None)
        if bad is not None:
            raise ValueError(f"rollout_func returned the log-probability {bad} of a sampled token")
        extra = {
            name: values[at] if isinstance(values, list) and at < len(values) else values
            for name, values in output.items()
            if name not in (*_NEEDED, _MASK)
        }
        rows.append(_Row(prompt_ids, completion_ids, logprobs, mask, extra, trainer))
    return rows


def _ids(found: Any, name: str, vocabulary: int) -> list[int]:
    ids = [int(token_id) for token_id in found]
    if not ids:
        raise ValueError(f"rollout_func returned empty {name}")
    if not 0 <= min(ids) <= max(ids) < vocabulary:
        raise ValueError(f"rollout_func returned {name} outside of the vocabulary of {vocabulary}")
    return ids


def _logprob(value: Any) -> float:
    """Return a log-probability, the first of several as vLLM's callers have them; NaN where there is none."""
    value = value[0] if isinstance(value, Sequence) and value else value
    return math.nan if value is None else float(value)


def _fits(value: float) -> bool:
    return math.isfinite(value) and value <= 1e-3  # rounding may leave a little above 0


def _spans(row: _Row, prompt: Any, rollout: Rollout, tokenizer: Any) -> list[Span]:
    """Return one call for each stretch of sampled tokens, after all that stands before it."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    spans, start, size = [], 0, len(row.completion_ids)
    while start < size:
        end = next((at for at in range(start, size) if row.mask[at] != row.mask[start]), size)
        if row.mask[start]:
            ids = row.completion_ids[start:end]
            drawn = row.trainer.drawn(ids)
            said = {"role": "assistant", "content": tokenizer.decode(ids, skip_special_tokens=True)}
            before = [*row.prompt_ids, *row.completion_ids[:start]]
            facts = {
                Key.SYSTEM: "mini-agentic-rl",
                Key.OPERATION: "chat",
                Key.REQUEST_MODEL: row.trainer.model_name,
                Key.REQUEST_TEMPERATURE: drawn.temperature,
                Key.FINISH_REASONS: ["length" if len(ids) >= row.trainer.max_completion_length else "stop"],
                Key.INPUT_MESSAGES: json.dumps(messages, ensure_ascii=False),
                Key.OUTPUT_MESSAGES: json.dumps(said, ensure_ascii=False),
                Key.INPUT_TOKENS: len(before),
                Key.OUTPUT_TOKENS: len(ids),
                Key.PROMPT_TOKEN_IDS: before,
                Key.RESPONSE_TOKEN_IDS: ids,
                Key.RESPONSE_LOGPROBS: row.logprobs[start:end],
                Key.POLICY_VERSION: drawn.version,
            }
            spans.append(_span(facts, rollout))
        start = end
    if not spans:
        raise ValueError("rollout_func returned no sampled token: env_mask is 0 everywhere")
    return spans


def _span(facts: dict[str, Any], rollout: Rollout) -> Span:
    now = time.time()
    return Span.from_attributes(
        attributes=facts,
        rollout_id=rollout.rollout_id,
        attempt_id="",
        sequence_id=0,
        name=Key.SPAN_NAME,
        start_time=now,
        end_time=now,
        status=TraceStatus(status_code="OK"),
    )
