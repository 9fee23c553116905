"""Check on any device, in any number format, what `tests/invariant` checks on the CPU; a part of `gpu.py`.

python benchmarks/exactness.py --model FOLDER --device cuda --dtype bfloat16

Every check compares two ways to the same number: the engine's log-probabilities with the learner's, the learner's with
transformers' own, a tree with its sequences, and small chunks with large ones. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from grpo_step_ours import rollout
from mini_agentic_rl.policy import EngineSettings, LearnerSettings, LoraSettings, LossInputs, LossOutputs, Policy
from mini_agentic_rl.samplers import PolicySampler
from mini_agentic_rl.tokens import CompletionRecord, PackedTrees, TokenTree, pack
from workload import Workload

BOUNDS = {"float32": 1e-3, "bfloat16": 0.05, "float16": 0.05}
"""Largest difference allowed, in nats or as a share of the gradient's norm; 16 bits round each product's result.

Rounding grows with the depth of the model, so in 16 bits twice the error of transformers' own forward pass, against
float32, is allowed where that is more."""

WORK = Workload(tasks=2, samples=4, prompt_tokens=120, new_tokens=24, turns=2, tool_tokens=10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of the model")
    parser.add_argument("--dtype", required=True, choices=list(BOUNDS))
    parser.add_argument("--device", required=True)
    parser.add_argument("--quantization", default="none", choices=["none", "4bit", "8bit"])
    parser.add_argument("--optimizer", default="adamw", choices=["adamw", "adamw_8bit"])
    options = parser.parse_args()
    policy = Policy.load(
        options.model,
        lora=LoraSettings(),
        dtype=options.dtype,
        device=options.device,
        quantization=options.quantization,
        seed=0,
        engine=EngineSettings(cache_mib=64),
    )
    policy.run(lambda: move_adapter(policy))
    trees = _conversations(policy)
    rows = [_row(options, name, value, bound) for name, value, bound in _checks(policy, trees, options)]
    policy.close()
    print(json.dumps(rows), flush=True)


def _row(options: argparse.Namespace, name: str, value: float, bound: float) -> dict[str, Any]:
    form = options.dtype if options.quantization == "none" else f"{options.quantization}, {options.dtype}"
    return {"check": name, "format": form, "difference": value, "bound": bound, "holds": value <= bound}


def move_adapter(policy: Policy) -> None:
    """Give the adapter values that do something: fresh ones are without effect."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in policy.model.base.named_parameters():
        if "lora_B" in name:
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)


def _conversations(policy: Policy) -> list[list[list[CompletionRecord]]]:
    """Sample the rollouts of each task: some turns each, with the same text between them."""
    sampler = PolicySampler(
        policy.engine, base_name="base", adapters=("default",), context_length=policy.model.context_length
    )
    rng = np.random.default_rng(0)
    between = rng.integers(0, 200, WORK.tool_tokens).tolist()

    async def sample() -> list[list[list[CompletionRecord]]]:
        prompts = [rng.integers(0, 200, WORK.prompt_tokens).tolist() for _ in range(WORK.tasks)]
        waiting = [
            asyncio.gather(*(rollout(sampler, prompt, between, WORK, 10 * task + n) for n in range(WORK.samples)))
            for task, prompt in enumerate(prompts)
        ]
        return [list(found) for found in await asyncio.gather(*waiting)]

    return asyncio.run(sample())


def _checks(
    policy: Policy, tasks: list[list[list[CompletionRecord]]], options: argparse.Namespace
) -> list[tuple[str, float, float]]:
    together = pack([tree_of(rollouts) for rollouts in tasks])
    single = pack([tree_of([records]) for rollouts in tasks for records in rollouts])
    bound = BOUNDS[options.dtype]
    theirs_S = exact_S = _transformers_logprobs(options.model, tasks, single, options, "float32")
    if options.dtype != "float32":
        theirs_S = _transformers_logprobs(options.model, tasks, single, options, options.dtype)
        bound = max(bound, 2 * float(np.abs(theirs_S - exact_S).max()))
    settings = LearnerSettings(learning_rate=1e-4, optimizer=options.optimizer)
    learner = policy.run(lambda: policy.learner(settings))
    learned_S = policy.run(lambda: learner.logprobs(together)).float().cpu().numpy()
    difference_S = np.abs(learned_S - together.behaviour_logprobs_S)
    found = [
        ("sampler against learner, largest, nats", float(difference_S.max()), bound),
        ("sampler against learner, mean, nats", float(difference_S.mean()), bound / 4),
    ]
    whole = gradient(policy, together, settings)
    found.append(("tree against sequences, gradient", apart(gradient(policy, single, settings), whole), bound))
    for name, other in (
        ("small chunks against large, gradient", settings.model_copy(update={"max_batch_tokens": 64})),
        ("with checkpointing, gradient", settings.model_copy(update={"checkpointing": True})),
    ):
        found.append((name, apart(gradient(policy, together, other), whole), bound))
    if options.quantization == "none":
        base_S = policy.run(lambda: learner.logprobs(single, reference=True)).float().cpu().numpy()
        found.append(("learner against transformers, largest, nats", float(np.abs(base_S - theirs_S).max()), bound))
    found.append(
        ("a step leaves finite weights that differ", policy.learn(lambda: _step(policy, settings, single)), 0.0)
    )
    return found


def tree_of(rollouts: Sequence[Sequence[CompletionRecord]]) -> TokenTree:
    tree = TokenTree()
    for index, records in enumerate(rollouts):
        for record in records:
            tree.insert(record, index)
    return tree


def _weighted(inputs: Any) -> LossOutputs:
    return LossOutputs((inputs.weights_S * inputs.logprobs_S).sum())


def _inputs(packed: PackedTrees) -> LossInputs:
    # By what a term is, and not by where it stands, so that a tree and its sequences weigh it alike.
    return LossInputs(torch.from_numpy(np.sin(1 + 9 * packed.behaviour_logprobs_S).astype(np.float32)))


def gradient(policy: Policy, packed: PackedTrees, settings: LearnerSettings) -> torch.Tensor:
    def job() -> torch.Tensor:
        learner = policy.learner(settings)
        learner.forward_backward(packed, _weighted, _inputs(packed))
        found = torch.cat([p.grad.flatten().double() for p in learner.parameters if p.grad is not None]).cpu()
        for parameter in learner.parameters:
            parameter.grad = None
        return found

    return policy.run(job)


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the distance of two gradients as a share of their length."""
    return float((one - other).norm() / other.norm())


def _step(policy: Policy, settings: LearnerSettings, packed: PackedTrees) -> float:
    """Take an optimizer step; return 0 if the weights have moved and are finite, else 1."""
    learner = policy.learner(settings)
    before = torch.cat([p.detach().flatten().clone() for p in learner.parameters])
    learner.forward_backward(packed, _weighted, _inputs(packed))
    metrics = learner.optim_step()
    after = torch.cat([p.detach().flatten() for p in learner.parameters])
    moved = bool(torch.isfinite(after).all()) and not torch.equal(before, after)
    return 0.0 if moved and math.isfinite(metrics["grad_norm"]) else 1.0


@torch.no_grad()
def _transformers_logprobs(
    folder: str, tasks: list[list[list[CompletionRecord]]], packed: PackedTrees, options: argparse.Namespace, dtype: str
) -> np.ndarray:
    """Return the base model's log-probabilities of the terms of `packed`, from transformers' own forward pass."""
    model: Callable[..., Any] = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).to(
        options.device
    )
    found: list[np.ndarray] = []
    for records in (records for rollouts in tasks for records in rollouts):
        last = records[-1]
        ids = torch.tensor([*last.prompt_ids.tolist(), *last.output_ids.tolist()], device=options.device)
        logprobs_TV = torch.log_softmax(model(input_ids=ids[None]).logits[0].float(), -1)
        for record in records:
            start = record.prompt_ids.size
            at = torch.arange(start, start + record.output_ids.size, device=options.device)
            found.append(logprobs_TV[at - 1, ids[at]].cpu().numpy())
    assert sum(part.size for part in found) == packed.term_count
    return np.concatenate(found)


if __name__ == "__main__":
    main()
