"""Measure the peak memory of GRPO steps under several settings against what the planner predicts.

python benchmarks/memory.py
python benchmarks/memory.py --device cuda --model Qwen/Qwen2-0.5B --tasks 1 --prompt-tokens 512 --new-tokens 512

Each measurement is a fresh process that samples and learns two steps. On the CPU the peak is that of the process, on
CUDA that of the device's allocator.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from grpo_step import measure
from mini_agentic_rl.policy import (
    EngineSettings,
    ModelShape,
    PlannedSettings,
    PlannedWork,
    kernels,
    plan_memory,
    resolve_device,
    resolve_dtype,
    resolve_model,
)
from output import add_model_options, deliver, make_parser


def measure_one(options: argparse.Namespace, max_batch_tokens: int, checkpointing: bool) -> dict[str, Any]:
    """One row: planned and measured bytes."""
    device = resolve_device(options.device)
    dtype = resolve_dtype(options.dtype, device)
    arguments = ["--model", resolve_model(options.model), "--device", str(device)]
    arguments += ["--dtype", str(dtype).removeprefix("torch."), "--tasks", str(options.tasks)]
    arguments += ["--samples", str(options.samples), "--prompt-tokens", str(options.prompt_tokens)]
    arguments += ["--new-tokens", str(options.new_tokens), "--warmup", "1", "--steps", "1"]
    arguments += ["--max-batch-tokens", str(max_batch_tokens), "--cache-mib", str(options.cache_mib)]
    arguments += ["--checkpointing"] if checkpointing else []
    plan = plan_memory(
        ModelShape.of(resolve_model(options.model)),
        PlannedWork(options.tasks, options.samples, options.prompt_tokens, options.new_tokens),
        PlannedSettings(
            dtype=dtype,
            checkpointing=checkpointing,
            max_batch_tokens=max_batch_tokens,
            cache_mib=options.cache_mib,
            optimizer_8bit=False,
            cuda_graphs=device.type != "cpu",
            compiled=kernels.usable(dtype, device),
        ),
        on_cpu=device.type == "cpu",
    )
    measured = measure(sys.executable, "grpo_step_ours.py", arguments)
    return {
        "max_batch_tokens": max_batch_tokens,
        "checkpointing": checkpointing,
        "planned": plan.peak,
        "measured": measured["peak_bytes"],
        "step": measured["step"],
        "ratio": plan.peak / measured["peak_bytes"],
    }


def report(console: Console, rows: list[dict[str, Any]]) -> None:
    table = Table(title="Peak memory of a GRPO step, GB")
    for name in ("tokens of a chunk", "checkpointing", "planned", "measured", "step, s", "planned / measured"):
        table.add_column(name, justify="right")
    for row in rows:
        sizes = (f"{row['planned'] / 1e9:.2f}", f"{row['measured'] / 1e9:.2f}")
        kept = "yes" if row["checkpointing"] else "no"
        table.add_row(str(row["max_batch_tokens"]), kept, *sizes, f"{row['step']:.1f}", f"{row['ratio']:.2f}")
    console.print(table)


def main() -> None:
    parser = make_parser(__doc__)
    add_model_options(parser)
    parser.add_argument("--tasks", type=int, default=4, help="tasks of a step")
    parser.add_argument("--samples", type=int, default=8, help="samples of each task")
    parser.add_argument("--prompt-tokens", type=int, default=375, help="tokens of each prompt")
    parser.add_argument("--new-tokens", type=int, default=64, help="sampled tokens of each rollout")
    parser.add_argument("--cache-mib", type=int, default=EngineSettings().cache_mib, help="key/value cache")
    parser.add_argument("--chunks", type=int, nargs="+", default=[256, 450, 900], help="tokens of a chunk")
    options = parser.parse_args()
    rows = [measure_one(options, size, kept) for kept in (False, True) for size in options.chunks]
    deliver(options, rows, report)


if __name__ == "__main__":
    main()
