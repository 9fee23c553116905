"""Sampling from an engine and making records, for tests that need real tokens."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from mini_agentic_rl.policy import EngineSettings, LoraSettings, Policy, load_model
from mini_agentic_rl.tokens import (
    CompletionRecord,
    PackedTrees,
    SamplingParams,
    TokenConstraint,
    TokenDelta,
    TokenRequest,
    TokenTree,
    pack,
)
from tiny import tiny_model


@contextmanager
def tiny_policy(
    *,
    lora: LoraSettings | None = LoraSettings(),  # noqa: B008
    engine: EngineSettings | None = None,
    dtype: torch.dtype = torch.float32,
    **options,
):
    """A policy on a tiny model whose adapter already does something, on the device that TEST_DEVICE names."""
    device = os.environ.get("TEST_DEVICE", "cpu")
    model = load_model(tiny_model(**options).to(device, dtype), lora=lora)
    if lora is not None:
        generator = torch.Generator().manual_seed(1)
        for name, parameter in model.base.named_parameters():
            if "lora_B" in name:
                parameter.data.copy_(torch.empty(parameter.shape).normal_(0, 0.2, generator=generator))
    policy = Policy(model, engine or EngineSettings(block_size=4, cache_mib=1, max_batch_tokens=48))
    try:
        yield policy
    finally:
        policy.close()


def sample_all(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
    timeout: float = 60.0,
    constraints: Sequence[Callable[[], TokenConstraint] | None] | None = None,
    adapter: str | Sequence[str | None] | None = "default",
) -> list[CompletionRecord]:
    """Submit all at once, so that one pass begins them; wait for all. `adapter` is that of all requests, or of each."""
    waiting: list[tuple[list[TokenDelta], threading.Event]] = []
    count = len(prompts)
    adapters = [adapter] * count if adapter is None or isinstance(adapter, str) else adapter
    each = zip(prompts, params, constraints or [None] * count, adapters, strict=True)

    def submit() -> None:
        for prompt, sampling, constraint, name in each:
            deltas: list[TokenDelta] = []
            done = threading.Event()

            def on_delta(delta: TokenDelta, deltas=deltas, done=done) -> None:
                deltas.append(delta)
                if delta.finish_reason is not None:
                    done.set()

            policy.engine.submit(TokenRequest(tuple(prompt), sampling, name, constraint=constraint), on_delta)
            waiting.append((deltas, done))

    policy._thread.call(submit)  # a job, between whose start and end the engine computes nothing
    records = []
    for prompt, sampling, (deltas, done) in zip(prompts, params, waiting, strict=True):
        assert done.wait(timeout), "the engine did not finish a request"
        records.append(
            CompletionRecord(
                prompt_ids=np.array(prompt),
                output_ids=np.array([t for d in deltas for t in d.token_ids], np.int64),
                logprobs=np.array([v for d in deltas for v in d.logprobs], np.float32),
                forced=_forced(deltas),
                finish_reason=deltas[-1].finish_reason or "stop",
                temperature=sampling.temperature,
                version=deltas[-1].version,
            )
        )
    return records


def _forced(deltas: Sequence[TokenDelta]) -> np.ndarray | None:
    marks = np.array([mark for d in deltas for mark in d.forced or [False] * len(d.token_ids)], np.bool_)
    return marks if marks.any() else None


def pack_rollouts(rollouts: Sequence[Sequence[CompletionRecord]]) -> PackedTrees:
    """Return one packed tree of the records of each rollout."""
    return pack([TokenTree.of(rollouts)])


def group_of_conversations(
    policy: Policy, *, rollouts: int = 4, turns: int = 3, seed: int = 0
) -> list[list[CompletionRecord]]:
    """Rollouts of one task, each of several turns that continue token by token, with tool text in between."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, 300, 21).tolist()
    conversations: list[list[CompletionRecord]] = [[] for _ in range(rollouts)]
    contexts = [list(prompt) for _ in range(rollouts)]
    for turn in range(turns):
        params = [
            SamplingParams(temperature=0.9, max_tokens=6, seed=100 * seed + 10 * turn + i) for i in range(rollouts)
        ]
        for i, record in enumerate(sample_all(policy, contexts, params)):
            conversations[i].append(record)
            tool = rng.integers(0, 300, 5).tolist()
            contexts[i] = [*record.prompt_ids.tolist(), *record.output_ids.tolist(), *tool]
    return conversations
