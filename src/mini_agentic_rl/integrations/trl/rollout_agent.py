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
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import httpx

from ...attribution import unrecorded
from ...emitter import emit_reward
from ...environments import REWARD, find_llm
from ...litagent import LitAgent
from ...semconv import CompletionSpanAttributes as Key
from ...types import LLM, NamedResources, Rollout, Span, TraceStatus
from .environment import TRLRewards

# A stand-in for TRL's trainer, as a `rollout_func` sees it: settings, the tokenizer, and a sampler.
#
# It samples as TRL's functions do that use vLLM: `trainer.vllm_generation.generate(prompts, …)` takes token ids,
# `trainer.vllm_client.generate(prompts, n=…)` texts or ids. Weights and optimizer of the trainer are not to be had.


_AT_ONCE: Final = 64
_SECONDS: Final = 600.0


@dataclass(frozen=True)
class Drawn:
    """The circumstances under which a completion was sampled."""

    version: int
    temperature: float


class RolloutTrainer:
    """Stands for TRL's GRPOTrainer in one call of a rollout function."""

    def __init__(self, llm: LLM, processing_class: Any) -> None:
        """
        Args:
            llm: samples, with its sampling parameters.
            processing_class: the model's tokenizer.
        """
        said = llm.sampling_parameters
        self.processing_class = processing_class
        self.temperature = float(said.get("temperature", 1.0))
        self.top_p = float(said.get("top_p", 1.0))
        self.top_k, self.min_p, self.repetition_penalty = 0, None, 1.0
        self.max_completion_length = int(said.get("max_completion_tokens") or said.get("max_tokens") or 256)
        self.num_generations = self.num_generations_eval = 1
        self.use_vllm, self.vllm_mode, self.chat_template = True, "server", None
        self.chat_template_kwargs: dict[str, Any] = {}
        self.tools: list[Any] = []
        self.eos_token_ids = [processing_class.eos_token_id]
        self.accelerator = SimpleNamespace(device="cpu", is_main_process=True, process_index=0, num_processes=1)
        self.state = SimpleNamespace(global_step=0)
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_completion_length")
        shared = {name: getattr(self, name) for name in (*names, "num_generations", "chat_template_kwargs")}
        self.args = SimpleNamespace(**shared, seed=0)
        self.model_name = llm.model
        self._llm = llm
        self._drawn: dict[tuple[int, ...], Drawn] = {}
        self.vllm_generation = SimpleNamespace(generate=self._generate, sync_weights=lambda: None)
        self.vllm_client = SimpleNamespace(generate=self._complete)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"this rollout_func asks TRL's trainer for {name!r}, which it does not have here: sample with "
            "trainer.vllm_generation.generate or trainer.vllm_client.generate"
        )

    def drawn(self, token_ids: Sequence[int]) -> Drawn:
        """Return how a completion was sampled; one that was not sampled here counts as the last that was."""
        last = next(reversed(self._drawn.values()), Drawn(0, self.temperature))
        return self._drawn.get(tuple(token_ids), last)

    def _generate(
        self, prompts: Sequence[Sequence[int]], images: Any = None, num_generations: int = 1, profiler: Any = None
    ) -> tuple[Any, Any, Any, Any]:
        """Sample one completion for each prompt, of which TRL's callers repeat each `num_generations` times."""
        if images is not None and any(image is not None for image in images):
            raise ValueError("images are not sampled after here")
        found = self._complete(prompts, max_tokens=self.max_completion_length, **self._usual())
        return found["prompt_ids"], found["completion_ids"], found["logprobs"], found["logprob_token_ids"]

    def _usual(self) -> dict[str, Any]:
        return {"temperature": self.temperature, "top_p": self.top_p}

    def _complete(
        self,
        prompts: Sequence[Any],
        *_: Any,
        n: int = 1,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int = 0,
        min_p: float = 0.0,
        max_tokens: int | None = None,
        generation_kwargs: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> dict[str, list[Any]]:
        if others.get("repetition_penalty", 1.0) != 1.0 or others.get("structured_outputs_regex"):
            raise ValueError("repetition_penalty and structured_outputs_regex are not served here: leave them out")
        warmth = self.temperature if temperature is None else temperature
        body = {
            "model": self._llm.model,
            "n": n,
            "temperature": warmth,
            "top_p": self.top_p if top_p is None else top_p,
            "top_k": max(top_k or 0, 0),
            "min_p": min_p or 0.0,
            "max_tokens": max_tokens or self.max_completion_length,
            "logprobs": 0,
            "return_token_ids": True,
            **(generation_kwargs or {}),
        }
        requests = [{**body, "prompt": prompt if isinstance(prompt, str) else list(prompt)} for prompt in prompts]
        headers = {"Authorization": f"Bearer {self._llm.api_key or 'none'}"}
        with unrecorded(), httpx.Client(timeout=_SECONDS, headers=headers) as client:

            def ask(request: dict[str, Any]) -> dict[str, Any]:
                answer = client.post(f"{self._llm.endpoint}/completions", json=request)
                if answer.is_error:
                    raise ValueError(f"the endpoint refused to sample: {_reason(answer)}")
                told: dict[str, Any] = answer.json()
                return told

            contexts = [copy_context() for _ in requests]
            with ThreadPoolExecutor(min(_AT_ONCE, max(1, len(requests)))) as threads:
                answers = list(threads.map(lambda context, body: context.run(ask, body), contexts, requests))
        choices = [choice for answer in answers for choice in answer["choices"]]
        for answer in answers:
            version = int(str(answer.get("system_fingerprint") or "policy-0").rpartition("-")[2])
            for choice in answer["choices"]:
                self._drawn[tuple(choice["token_ids"])] = Drawn(version, warmth)
        return {
            "prompt_ids": [answer["choices"][0]["prompt_token_ids"] for answer in answers],
            "completion_ids": [choice["token_ids"] for choice in choices],
            "logprobs": [[[value] for value in choice["logprobs"]["token_logprobs"]] for choice in choices],
            "logprob_token_ids": [[[token_id] for token_id in choice["token_ids"]] for choice in choices],
        }


def _reason(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}"


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
