"""Measure one GRPO step on two ranks of one thread each against one process of two threads.

python benchmarks/ranks.py                       # W1: 4 tasks of 8 samples, 375-token prompts, 64 new tokens
python benchmarks/ranks.py --model 0.5B          # random weights of that shape, where no hub is reached
python benchmarks/ranks.py --ranks 4             # four ranks against one process of four threads

Each measurement is a launch of its own; both sides take turns, and the median of the rounds counts. A step is that of
`grpo_step.py`: what is sampled, its update, and nothing of a gateway or a store.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mini_agentic_rl.policy import resolve_device, resolve_dtype, resolve_model
from output import add_model_options, deliver, make_parser, tell
from random_model import SHAPES, make_model

STEP = Path(__file__).parent / "grpo_step_ours.py"
SIDES = ("one process", "ranks")


def measure(ranks: int, threads: int, arguments: list[str]) -> dict[str, Any]:
    """Run the step on so many ranks of so many threads; return what it prints."""
    alone = [sys.executable, str(STEP)]
    together = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), str(STEP)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [*(alone if ranks == 1 else together), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def report(console: Console, found: dict[str, Any]) -> None:
    """Print the result as a table."""
    shown = Table("", "step, s", "sampling, s", "learning, s")
    for name in SIDES:
        side = found["sides"][name]
        shown.add_row(name, *(f"{side[what]:.2f}" for what in ("step", "sampling", "learning")))
    shown.add_row("one / ranks", *(f"{found['ratio'][what]:.2f}" for what in ("step", "sampling", "learning")))
    console.print(shown)


def main() -> None:
    """Run both sides in turns."""
    parser = make_parser(__doc__)
    add_model_options(parser)
    parser.add_argument("--ranks", type=int, default=2, help="and threads of the process that is alone")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2, help="steps of a round that count")
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=375)
    parser.add_argument("--new-tokens", type=int, default=64)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rounds = run_rounds(options, Path(folder))
    sides = {
        name: {what: statistics.median(one[name][what] for one in rounds) for what in ("step", "sampling", "learning")}
        for name in SIDES
    }
    ratio = {what: sides[SIDES[0]][what] / sides[SIDES[1]][what] for what in ("step", "sampling", "learning")}
    deliver(options, {"rounds": rounds, "sides": sides, "ratio": ratio}, report)


def run_rounds(options: argparse.Namespace, folder: Path) -> list[dict[str, dict[str, Any]]]:
    """Measure both sides in turns."""
    device = resolve_device(options.device)
    model = make_model(options.model, folder) if options.model in SHAPES else resolve_model(options.model)
    given = {
        "model": model,
        "dtype": str(resolve_dtype(options.dtype, device)).removeprefix("torch."),
        "device": str(device),
        "warmup": 1,
        **{name: getattr(options, name) for name in ("steps", "tasks", "samples", "prompt_tokens", "new_tokens")},
    }
    arguments = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    rounds = []
    for _ in range(options.rounds):
        one = {SIDES[0]: measure(1, options.ranks, arguments), SIDES[1]: measure(options.ranks, 1, arguments)}
        tell(", ".join(f"{name} {found['step']:.2f} s" for name, found in one.items()))
        rounds.append(one)
    return rounds


if __name__ == "__main__":
    main()
