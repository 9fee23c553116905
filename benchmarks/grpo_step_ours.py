"""One side of `grpo_step.py` and of `ranks.py`: a GRPO step of mini-agentic-rl. Prints one line of JSON."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from mini_agentic_rl.algorithm import GRPOSettings
from mini_agentic_rl.algorithm.groups import Group, Trajectory
from mini_agentic_rl.algorithm.grpo import batch_of, take_steps
from mini_agentic_rl.policy import (
    EngineSettings,
    LearnerSettings,
    LoraSettings,
    Policy,
    RankedPolicy,
    RankSettings,
    follow_rank_0,
    launched,
)
from mini_agentic_rl.processes import peak_memory_bytes
from mini_agentic_rl.samplers import PolicySampler
from mini_agentic_rl.tokens import CompletionRecord, SamplingParams, TokenRequest
from workload import TOOL_SCHEMA, Workload, child_parser, conversations, print_result, render, tool_result, workload_of


async def turn(sampler: PolicySampler, prompt: list[int], work: Workload, seed: int) -> CompletionRecord:
    request = TokenRequest(tuple(prompt), SamplingParams(max_tokens=work.new_tokens, seed=seed), adapter="default")
    deltas = [delta async for delta in sampler.complete(request)]
    return CompletionRecord(
        prompt_ids=np.array(prompt, np.int64),
        output_ids=np.array([token for delta in deltas for token in delta.token_ids], np.int64),
        logprobs=np.array([value for delta in deltas for value in delta.logprobs], np.float32),
        finish_reason="length",
        version=deltas[-1].version,
    )


async def rollout(
    sampler: PolicySampler, prompt: list[int], result: list[int], work: Workload, seed: int
) -> list[CompletionRecord]:
    records = []
    for number in range(work.turns):
        record = await turn(sampler, prompt, work, seed * 100 + number)
        records.append(record)
        prompt = [*prompt, *record.output_ids.tolist(), *result]
    return records


def main() -> None:
    parser = child_parser(__doc__ or "")
    parser.add_argument("--max-batch-tokens", type=int, default=LearnerSettings().max_batch_tokens)
    parser.add_argument("--cache-mib", type=int, default=EngineSettings().cache_mib)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--no-cuda-graphs", action="store_true", help="decode without recorded steps")
    parser.add_argument("--quantization", default="none", choices=["none", "4bit", "8bit"])
    parser.add_argument("--device-bytes", type=int, default=None, help="as if the card had so little memory")
    options = parser.parse_args()
    work = workload_of(options)
    cuda = options.device.startswith("cuda")
    if cuda and options.device_bytes:
        total = torch.cuda.get_device_properties(options.device).total_memory
        torch.cuda.set_per_process_memory_fraction(options.device_bytes / total, options.device)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    tools = [TOOL_SCHEMA] if work.turns > 1 else None
    prompts = [render(tokenizer, messages, tools) for messages in conversations(tokenizer, work)]
    filler = tokenizer(tool_result(tokenizer, work), add_special_tokens=False)["input_ids"] if tools else []
    result = (filler * work.tool_tokens)[: work.tool_tokens]
    load: dict[str, Any] = {
        "lora": LoraSettings(),
        "dtype": options.dtype,
        "device": options.device,
        "quantization": options.quantization,
        "seed": 0,
        "engine": EngineSettings(cache_mib=options.cache_mib, cuda_graphs=not options.no_cuda_graphs),
    }
    launch = launched()
    if launch is None:
        policy = Policy.load(options.model, **load)
    elif launch.follows:
        follow_rank_0(launch, RankSettings(), vars(options), options.model, **load)
        return
    else:
        policy = RankedPolicy.lead(launch, RankSettings(), vars(options), options.model, **load)
    sampler = PolicySampler(
        policy.engine, base_name="base", adapters=("default",), context_length=policy.model.context_length
    )
    settings = GRPOSettings(samples_per_prompt=work.samples, tasks_per_step=work.tasks, max_new_tokens=work.new_tokens)
    learner_settings = LearnerSettings(
        learning_rate=1e-6, max_batch_tokens=options.max_batch_tokens, checkpointing=options.checkpointing
    )
    learner = policy.run(lambda: policy.learner(learner_settings))

    async def sample(step: int) -> list[list[CompletionRecord]]:
        rollouts = [
            rollout(sampler, prompt, result, work, (step * work.tasks + task) * work.samples + sample)
            for task, prompt in enumerate(prompts)
            for sample in range(work.samples)
        ]
        return await asyncio.gather(*rollouts)

    seconds: dict[str, list[float]] = {"step": [], "sampling": [], "learning": []}
    tokens = 0
    for step in range(options.warmup + options.steps):
        started = time.perf_counter()
        rollouts = asyncio.run(sample(step))
        sampled = time.perf_counter()
        groups = [
            Group(
                str(task),
                [
                    Trajectory(str(index), rollouts[task * work.samples + index], float(index % 2))
                    for index in range(work.samples)
                ],
            )
            for task in range(work.tasks)
        ]
        batch = batch_of(groups, settings)
        assert batch is not None
        tokens = batch.packed.token_count
        policy.learn(lambda batch=batch: take_steps(learner, batch, settings))
        ended = time.perf_counter()
        if step >= options.warmup:
            seconds["step"].append(ended - started)
            seconds["sampling"].append(sampled - started)
            seconds["learning"].append(ended - sampled)
    policy.close()
    print_result(
        work,
        **{name: statistics.median(values) for name, values in seconds.items()},
        computed_tokens=tokens,
        peak_bytes=torch.cuda.max_memory_allocated() if cuda else peak_memory_bytes(),
    )


if __name__ == "__main__":
    main()
