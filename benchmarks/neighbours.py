"""Measure what busy neighbours cost the jobs beside training by rewards: imitation, measuring, TRL's trainer, scores.

python benchmarks/neighbours.py                         # each job quiet, and beside one busy process
python benchmarks/neighbours.py --jobs sft eval --neighbours 0 1 2 --rounds 3

Every measurement is a fresh process of a command, timed as a whole, its start included; the median of the rounds
counts. With N neighbours on two cores a fair share is 1 / (1 + N / 2) of the machine, so one of them makes a job that
uses both cores 1.5 times as long, and two make it twice as long. Reinforcement learning: `grpo_step.py --neighbours`.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from output import add_model_options, deliver, make_parser, tell

COMMAND = [sys.executable, "-m", "mini_agentic_rl"]
JOBS = ("sft", "eval", "trl", "score")


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


def command(job: str, options: argparse.Namespace, folder: str) -> list[str]:
    """Return the command line of a job."""
    model = ["--model", options.model, "--dtype", options.dtype, "--device", options.device]
    if job == "score":
        script = str(Path(__file__).with_name("score.py"))
        return [sys.executable, script, *model, "--texts", str(options.examples), "--json"]
    if job == "eval":
        return [*COMMAND, "eval", *model, "--size", str(options.examples)]
    method = {"sft": "sft", "trl": "dpo"}[job]
    size = ["--max-steps", str(options.steps), "--max-samples", str(options.examples)]
    return [*COMMAND, method, *model, *size, "--output-dir", folder]


def measure(job: str, options: argparse.Namespace) -> float:
    """Run a job once and return its seconds."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        done = subprocess.run(command(job, options, f"{folder}/run"), capture_output=True, text=True)
        seconds = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"{job} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return seconds


def measure_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each job: seconds beside each number of neighbours."""
    found: dict[tuple[str, int], list[float]] = {}
    for _, job, count in product(range(options.rounds), options.jobs, options.neighbours):
        with neighbours(count):
            found.setdefault((job, count), []).append(measure(job, options))
        tell(f"{job} beside {count}: {found[job, count][-1]:.1f} s")
    return [
        {"job": job, "seconds": {count: statistics.median(found[job, count]) for count in options.neighbours}}
        for job in options.jobs
    ]


def report(console: Console, rows: list[dict[str, Any]]) -> None:
    counts = list(rows[0]["seconds"])
    table = Table(title="Seconds beside busy processes, and against the first column")
    table.add_column("job")
    for count in counts:
        table.add_column(f"{count} busy", justify="right")
    for row in rows:
        quiet = row["seconds"][counts[0]]
        table.add_row(row["job"], *(f"{row['seconds'][n]:.1f} ({row['seconds'][n] / quiet:.2f})" for n in counts))
    console.print(table)


def main() -> None:
    parser = make_parser(__doc__)
    add_model_options(parser)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS), help="what is measured")
    parser.add_argument("--neighbours", type=int, nargs="+", default=[0, 1], help="busy processes beside it")
    parser.add_argument("--steps", type=int, default=8, help="optimizer steps of sft and trl")
    parser.add_argument("--examples", type=int, default=64, help="examples, problems and texts")
    parser.add_argument("--rounds", type=int, default=1, help="measurements of each")
    options = parser.parse_args()
    deliver(options, measure_all(options), report)


if __name__ == "__main__":
    main()
