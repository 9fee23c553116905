"""Measure one GRPO step, sampling and learning, against TRL's GRPOTrainer.

python benchmarks/grpo_step.py --peer-python other-env/bin/python     # W1: 375-token prompts, one turn of 64 tokens
python benchmarks/grpo_step.py --turns 3 --peer-python ...            # W2: two tool calls, 60-token results between
python benchmarks/grpo_step.py --prompt-tokens 1000 --samples 8 16    # how a step grows with the group
python benchmarks/grpo_step.py --neighbours 0 1 2 --peer-python=      # what it takes beside busy processes

Each measurement is a fresh process; both sides take turns, and the median of the rounds counts. Memory is the peak of
the process, or of the device's allocator on CUDA. Both sides train LoRA r=8 on all linear layers of the same model in
the same type; rewards alternate, so that every group has a signal; no KL.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mini_agentic_rl.policy import resolve_device, resolve_dtype, resolve_model
from output import add_model_options, deliver, make_parser, tell

HERE = Path(__file__).parent
OURS, PEER = "mini-agentic-rl", "TRL"


def measure(python: str, script: str, arguments: list[str]) -> dict[str, Any]:
    """Run a script and return the last line that it prints, which is JSON."""
    done = subprocess.run([python, str(HERE / script), *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{script} failed:\n{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Keep so many other processes busy, each with one thread that never waits, while inside."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def run_round(options: argparse.Namespace, samples: int, folder: str) -> dict[str, dict[str, Any]]:
    """Measure both sides once."""
    device = resolve_device(options.device)
    dtype = str(resolve_dtype(options.dtype, device)).removeprefix("torch.")
    common = [
        *("--model", resolve_model(options.model), "--dtype", dtype, "--device", str(device)),
        *("--tasks", str(options.tasks), "--samples", str(samples), "--prompt-tokens", str(options.prompt_tokens)),
        *("--new-tokens", str(options.new_tokens), "--turns", str(options.turns)),
        *("--tool-tokens", str(options.tool_tokens), "--warmup", str(options.warmup), "--steps", str(options.steps)),
    ]
    ours = ["--max-batch-tokens", str(options.max_batch_tokens)] if options.max_batch_tokens else []
    if options.checkpointing:
        ours.append("--checkpointing")
    found = {OURS: measure(sys.executable, "grpo_step_ours.py", [*common, *ours])}
    tell(f"{OURS}, {samples} samples: {found[OURS]['step']:.1f} s a step")
    if options.peer_python:
        theirs = ["--batch", str(options.peer_batch), "--folder", folder]
        if options.peer_no_checkpointing:
            theirs.append("--no-checkpointing")
        found[PEER] = measure(options.peer_python, "grpo_step_trl.py", [*common, *theirs])
        tell(f"{PEER}, {samples} samples: {found[PEER]['step']:.1f} s a step")
    return found


def measure_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each side and number of samples: medians over the rounds."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for samples, count in product(options.samples, options.neighbours):
            with neighbours(count):
                rounds = [run_round(options, samples, folder) for _ in range(options.rounds)]
            for side in rounds[0]:
                metrics = {
                    name: statistics.median(found[side][name] for found in rounds)
                    for name in ("step", "sampling", "learning", "computed_tokens", "peak_bytes")
                }
                new = options.tasks * samples * options.turns * options.new_tokens
                rows.append(
                    {
                        "side": side,
                        "samples": samples,
                        "neighbours": count,
                        **metrics,
                        "tokens_per_second": new / metrics["sampling"],
                    }
                )
    return rows


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the ratio of each comparison; above 1 is in our favour, but for the growth with the group."""
    found = {}
    for row in rows:
        quiet = next(other for other in rows if (other["side"], other["samples"]) == (row["side"], row["samples"]))
        if row["neighbours"] > quiet["neighbours"]:
            name = f"step of {row['side']}, {row['samples']} samples: {row['neighbours']} neighbours / "
            found[f"{name}{quiet['neighbours']}"] = row["step"] / quiet["step"]
    fewest = min(row["neighbours"] for row in rows)
    by = {(row["side"], row["samples"]): row for row in rows if row["neighbours"] == fewest}
    sizes = sorted({row["samples"] for row in rows})
    for samples in sizes:
        ours, peer = by[OURS, samples], by.get((PEER, samples))
        if peer is not None:
            for name in ("step", "sampling", "learning", "peak_bytes"):
                found[f"{name}, {samples} samples: TRL / ours"] = peer[name] / ours[name]
    for side in (OURS, PEER):
        if len(sizes) > 1 and (side, sizes[0]) in by:
            growth = by[side, sizes[-1]]["step"] / by[side, sizes[0]]["step"]
            found[f"step of {side}: {sizes[-1]} samples / {sizes[0]} samples"] = growth
    return found


def report(console: Console, result: dict[str, Any]) -> None:
    table = Table(title="One GRPO step")
    for name in (
        "",
        "samples",
        "neighbours",
        "step, s",
        "sampling, s",
        "learning, s",
        "new tokens/s",
        "tokens computed",
        "peak, GB",
    ):
        table.add_column(name, justify="right" if name else "left")
    for row in result["rows"]:
        times = (f"{row[name]:.1f}" for name in ("step", "sampling", "learning"))
        rest = (f"{row['tokens_per_second']:.0f}", f"{row['computed_tokens']:,.0f}", f"{row['peak_bytes'] / 1e9:.2f}")
        table.add_row(row["side"], str(row["samples"]), str(row["neighbours"]), *times, *rest)
    console.print(table)
    for name, ratio in result["ratios"].items():
        console.print(f"{name}: {ratio:.2f}", highlight=False)
    if all(row["side"] == OURS for row in result["rows"]):
        console.print("TRL was not measured: --peer-python names an environment that has it")


def main() -> None:
    parser = make_parser(__doc__)
    add_model_options(parser)
    parser.add_argument("--tasks", type=int, default=4, help="tasks of a step")
    parser.add_argument("--samples", type=int, nargs="+", default=[8], help="samples of each task")
    parser.add_argument("--neighbours", type=int, nargs="+", default=[0], help="busy processes beside it")
    parser.add_argument("--prompt-tokens", type=int, default=375, help="tokens of each prompt")
    parser.add_argument("--new-tokens", type=int, default=64, help="sampled tokens of a turn, exactly")
    parser.add_argument("--turns", type=int, default=1, help="turns of a rollout")
    parser.add_argument("--tool-tokens", type=int, default=60, help="tokens between two turns")
    parser.add_argument("--max-batch-tokens", type=int, default=None, help="ours: tokens of a chunk")
    parser.add_argument("--checkpointing", action="store_true", help="ours: recompute activations, as TRL does")
    parser.add_argument("--peer-python", default=None, help="Python of an environment with TRL; empty leaves TRL out")
    parser.add_argument("--peer-batch", type=int, default=8, help="TRL: per_device_train_batch_size")
    parser.add_argument("--peer-no-checkpointing", action="store_true", help="TRL: gradient_checkpointing off")
    parser.add_argument("--warmup", type=int, default=1, help="steps of a process that do not count")
    parser.add_argument("--steps", type=int, default=1, help="steps of a process that count")
    parser.add_argument("--rounds", type=int, default=1, help="processes of each side, in turns")
    options = parser.parse_args()
    if options.peer_python is None and importlib.util.find_spec("trl"):
        options.peer_python = sys.executable
    rows = measure_all(options)
    result = {"rows": rows, "ratios": ratios(rows)}
    deliver(options, result, report)


if __name__ == "__main__":
    main()
