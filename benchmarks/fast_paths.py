"""Measure what a GPU computes in ways of its own, on against off: CUDA graphs in decoding, FlexAttention in learning.

python benchmarks/fast_paths.py --model FOLDER --device cuda --dtype bfloat16

Says as well whether both give the same numbers, and how often a decode step waits for the device. A part of `gpu.py`;
prints one line of JSON. On a CPU a plain call stands in for the graph, and FlexAttention is not taken.
"""

from __future__ import annotations

import asyncio
import json
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from exactness import BOUNDS, apart, gradient, move_adapter, tree_of
from grpo_step_ours import turn
from mini_agentic_rl.policy import (
    Engine,
    EngineSettings,
    LearnerSettings,
    LoraSettings,
    Policy,
    TorchThread,
    load_model,
)
from mini_agentic_rl.policy.tree_attention import flex_on
from mini_agentic_rl.samplers import PolicySampler
from mini_agentic_rl.tokens import CompletionRecord, SamplingParams, TokenRequest, pack
from workload import Workload, child_parser, workload_of

GRAPHS, FLEX = "CUDA graphs", "FlexAttention"


class _PlainCalls:
    """Repeats a call by calling it, where there are no CUDA graphs."""

    def record(self, call: Callable[[], None]) -> Callable[[], None]:
        call()
        return call


def main() -> None:
    parser = child_parser(__doc__ or "")
    parser.add_argument("--cache-mib", type=int, default=EngineSettings().cache_mib)
    options = parser.parse_args()
    work = workload_of(options)
    thread = TorchThread()
    how = {"lora": LoraSettings(), "dtype": options.dtype, "device": options.device, "seed": 0}
    model = thread.call(lambda: load_model(options.model, **how))
    plain = EngineSettings(cache_mib=options.cache_mib, cuda_graphs=False)
    policy = Policy(model, plain, thread)
    policy.run(lambda: move_adapter(policy))
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 200, work.prompt_tokens).tolist() for _ in range(work.tasks)]
    bound = BOUNDS[options.dtype]

    rates, found, waits = [], [], []
    for settings in (plain, plain.changed(cuda_graphs=True)):
        policy.engine = Engine(
            model, thread, settings, _PlainCalls() if settings.cuda_graphs and not _cuda(model) else None
        )
        for _ in range(3):  # the first reads the prompts, the second records what the first has met
            began = time.perf_counter()
            records = asyncio.run(_sample(policy, prompts, work))
            seconds = time.perf_counter() - began
        rates.append(work.tasks * work.samples * work.new_tokens / seconds)
        found.append(records)
        waits.append(thread.call(lambda: _waits(policy.engine, prompts, work)) if _cuda(model) else None)
    decoding = policy.engine.decoding
    assert decoding is not None
    steps = decoding.counters
    rows = [
        _row(GRAPHS, "tokens sampled a second", *rates),
        _row(GRAPHS, "waits for the device in a decode step", *waits),
        _row(
            GRAPHS,
            "share of decode steps repeated",
            0.0,
            steps["replayed"] / max(1, steps["replayed"] + steps["plain"]),
        ),
        _row(GRAPHS, "recordings", 0, steps["recorded"], holds=steps["recorded"] > 0),
        _row(GRAPHS, "log-probability, largest difference, nats", None, _difference(*found), bound=bound),
    ]
    packed = pack([tree_of([[record] for record in found[0][task :: work.tasks]]) for task in range(work.tasks)])
    learned = [_learning(policy, packed, LearnerSettings(flex_attention=flex)) for flex in (False, True)]
    used = flex_on(model.device, model.dtype, model.heads, model.kv_heads, model.head_size) is not None
    rows += [
        _row(FLEX, "taken", False, used, holds=used == _cuda(model)),
        _row(FLEX, "learning, s", learned[0][1], learned[1][1]),
        _row(FLEX, "peak of learning, GB", learned[0][2], learned[1][2]),
        _row(FLEX, "gradient, difference", None, apart(learned[1][0], learned[0][0]), bound=bound),
    ]
    thread.close()
    print(json.dumps(rows), flush=True)


def _row(
    path: str, measure: str, off: Any, on: Any, *, bound: float | None = None, holds: bool | None = None
) -> dict[str, Any]:
    within = on <= bound if bound is not None else holds is not False
    return {"path": path, "measure": measure, "off": off, "on": on, "bound": bound, "holds": within}


def _cuda(model: Any) -> bool:
    return bool(model.device.type == "cuda")


async def _sample(policy: Policy, prompts: Sequence[list[int]], work: Workload) -> list[CompletionRecord]:
    """Sample every prompt; those of one prompt are as many places apart as there are prompts."""
    sampler = PolicySampler(
        policy.engine, base_name="base", adapters=("default",), context_length=policy.model.context_length
    )
    many = list(prompts) * work.samples
    return await asyncio.gather(*(turn(sampler, prompt, work, seed) for seed, prompt in enumerate(many)))


def _waits(engine: Engine, prompts: Sequence[list[int]], work: Workload) -> float:
    """Return how often a decode step waits for the device, as torch counts it. On the torch thread."""
    for seed, prompt in enumerate(list(prompts) * work.samples):
        params = SamplingParams(max_tokens=work.new_tokens, seed=seed)
        engine.submit(TokenRequest(tuple(prompt), params, "default"), lambda _: None)
    before = engine.counters.passes
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            while engine.pending():
                engine.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    count = sum("synchronizing CUDA operation" in str(warning.message) for warning in told)
    return count / (engine.counters.passes - before)


def _difference(one: Sequence[CompletionRecord], other: Sequence[CompletionRecord]) -> float:
    """Return the largest difference of log-probabilities, of each rollout up to the first token that is another."""
    largest = 0.0
    for left, right in zip(one, other, strict=True):
        apart_at = np.flatnonzero(left.output_ids != right.output_ids)
        end = int(apart_at[0]) if apart_at.size else left.output_ids.size
        if end:
            largest = max(largest, float(np.abs(left.logprobs[:end] - right.logprobs[:end]).max()))
    return largest


def _learning(policy: Policy, packed: Any, settings: LearnerSettings) -> tuple[torch.Tensor, float, float | None]:
    """Return the gradient of a pass, its seconds when everything is compiled, and the peak of a card's memory."""
    found = gradient(policy, packed, settings)
    on_card = _cuda(policy.model)
    if on_card:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    began = time.perf_counter()
    found = gradient(policy, packed, settings)  # which ends on the host
    seconds = time.perf_counter() - began
    return found, seconds, torch.cuda.max_memory_allocated() / 1e9 if on_card else None


if __name__ == "__main__":
    main()
