"""Train what the pages document with several seeds, and say whether it learns each time.

python benchmarks/learning.py --seeds 3 --folder runs                    # every agent, three seeds each
python benchmarks/learning.py --only judge tutorial --seeds 10 --dtype bfloat16 --folder runs
python benchmarks/learning.py --seeds 0 --folder runs --csv table.csv    # only the table of the runs that are there

A run is the command or the program of the page, in a process of its own; one that is in the folder already is not
repeated. Ends with exit code 1 if fewer than 19 of 20 runs of an agent reach 80 % of what its page says.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from output import deliver, make_parser, tell

ROOT = Path(__file__).resolve().parent.parent
TERMS = "?min_terms=2&max_terms=2&min_digits=1&max_digits=2"
SQL = ("--total-steps", "20", "--tasks-per-step", "8", "--learning-rate", "4e-4", "--dynamic-sampling")
ENOUGH, OF_RUNS = 0.8, 0.95


@dataclass(frozen=True)
class Documented:
    """An agent of a page: the accuracy that the page states, and how it is trained."""

    accuracy: float
    """Held-out accuracy after reinforcement learning, in [0, 1]."""
    options: Sequence[str] = ()
    """Options of `mini-agentic-rl train`; not for a program of a page."""
    page: str = ""
    """Page whose Python blocks make the program, which constructs `MiniGRPO("embedded", …)`."""
    files: Mapping[str, Sequence[str]] | None = None
    """Files of that program: a line that each of their blocks contains. The last is started."""


DOCUMENTED: Mapping[str, Documented] = {
    "units": Documented(0.9),
    "retrieval": Documented(0.8, ["--agent", "retrieval", "--difficulty", "1"]),
    "sql": Documented(0.4, ["--agent", "sql", "--difficulty", "1,2", *SQL]),
    "guess": Documented(0.5, ["--agent", "guess", "--difficulty", "1"]),
    "chain_sum": Documented(0.4, ["--dataset", f"reasoning_gym:chain_sum{TERMS}"]),
    "judge": Documented(0.95, page="README.md", files={"train.py": ["def judge("]}),
    "tutorial": Documented(
        0.9,
        page="docs/tutorials/openai-agent.md",
        files={"my_agent.py": ["def route("], "train.py": ["SENTENCES = {", "def reward(", "def routed("]},
    ),
}


def train(name: str, seed: int, dtype: str, folder: Path) -> None:
    """Train one agent with one seed: the run into `folder`/run, what it prints into `folder`/output.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    agent = DOCUMENTED[name]
    if agent.files is None:
        command = ["-m", "mini_agentic_rl", "train", "--seed", str(seed), "--dtype", dtype, "--output-dir", "run"]
        command += ["--overwrite", *agent.options]
    else:
        write_program(agent, seed, dtype, folder)
        command = [list(agent.files)[-1]]
    with (folder / "output.txt").open("w") as output:
        subprocess.run([sys.executable, *command], cwd=folder, stdout=output, stderr=output, check=False)


def write_program(agent: Documented, seed: int, dtype: str, folder: Path) -> None:
    """Write the program of a page, with a seed, a type of weights and a folder for the run."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / agent.page).read_text(encoding="utf-8"), re.M | re.S)
    for file, lines in (agent.files or {}).items():
        text = "\n\n".join(next(block for block in blocks if line in block) for line in lines)
        text = text.replace(
            'MiniGRPO("embedded"', f'MiniGRPO("embedded", seed={seed}, load_options={{"dtype": "{dtype}"}}'
        )
        text = re.sub(r'output_dir="[^"]*"', 'output_dir="run", overwrite=True', text)
        (folder / file).write_text(text, encoding="utf-8")


def run_row(name: str, folder: Path) -> dict[str, Any]:
    """Return the figures of a run, which are None where it did not end."""
    path = folder / "run" / "summary.json"
    summary = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    accuracy = {row["name"]: row["accuracy"] for row in summary.get("accuracy", [])}
    seconds, verdict = summary.get("seconds", {}), summary.get("verdict") or {}
    learns = {part: seconds.get(part, 0.0) for part in ("sft", "probes", "sampling", "learning")}
    return {
        "agent": name,
        "run": folder.name,
        "before": accuracy.get("before"),
        "warm_up": accuracy.get("after SFT"),
        "after": accuracy.get("after RL"),
        "gain": verdict.get("gain"),
        "low": verdict.get("low"),
        "high": verdict.get("high"),
        "minutes": seconds["this process"] / 60 if seconds else None,
        "share_on_rewards": (learns["sampling"] + learns["learning"]) / max(sum(learns.values()), 1e-9)
        if seconds
        else None,
        "peak_bytes": summary.get("peak_memory_bytes"),
    }


def agent_row(name: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the row of an agent: medians over its runs, and the worst of them."""
    after = [run["after"] or 0.0 for run in runs]
    needed = ENOUGH * DOCUMENTED[name].accuracy
    reached = sum(accuracy >= needed for accuracy in after)
    return {
        "agent": name,
        "runs": len(runs),
        "before": _median(runs, "before"),
        "warm-up": _median(runs, "warm_up"),
        "after": statistics.median(after),
        "worst": min(after),
        "gain": _median(runs, "gain"),
        "lowest bound": min(run["low"] if run["low"] is not None else -1.0 for run in runs),
        "on rewards": _median(runs, "share_on_rewards"),
        "minutes": _median(runs, "minutes"),
        "GiB": (_median(runs, "peak_bytes") or 0) / 2**30,
        "reached": f"{reached} of {len(runs)}",
        "holds": reached >= OF_RUNS * len(runs),
    }


def _median(runs: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [run[key] for run in runs if run[key] is not None]
    return statistics.median(values) if values else None


def report(console: Console, result: Mapping[str, Any]) -> None:
    """Print a Markdown table: one row an agent, shares in percent."""
    names = [name for name in (result["agents"] or [{}])[0] if name != "holds"]
    percents = ("before", "warm-up", "after", "worst", "gain", "lowest bound", "on rewards")
    console.print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}", highlight=False, soft_wrap=True)
    for row in result["agents"]:
        cells = [_cell(row[name], 100 if name in percents else 1) for name in names]
        console.print(f"| {' | '.join(cells)} |", highlight=False, soft_wrap=True)


def _cell(value: Any, times: float) -> str:
    return "" if value is None else f"{times * value:.1f}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=list(DOCUMENTED), default=list(DOCUMENTED), help="agents")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 0; 0 trains nothing")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"], help="type of the weights")
    parser.add_argument("--folder", type=Path, default=Path("outputs/learning"), help="folder of the runs")
    parser.add_argument("--csv", type=Path, default=None, help="file for the figures of every run")
    options = parser.parse_args()
    _train_missing(options)
    rows = {
        name: [run_row(name, folder) for folder in sorted((options.folder / name).glob("*")) if folder.is_dir()]
        for name in options.only
    }
    runs = [row for own in rows.values() for row in own]
    if options.csv is not None and runs:
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(runs[0]))
            writer.writeheader()
            writer.writerows(runs)
    agents = [agent_row(name, own) for name, own in rows.items() if own]
    deliver(options, {"agents": agents, "runs": runs}, report)
    if not all(row["holds"] for row in agents):
        raise SystemExit(1)


def _train_missing(options: argparse.Namespace) -> None:
    for seed in range(options.seeds):
        for name in options.only:
            folder = (options.folder / name / f"{options.dtype}-{seed}").resolve()
            if not (folder / "run" / "summary.json").is_file():
                began = time.monotonic()
                train(name, seed, options.dtype, folder)
                after = run_row(name, folder)["after"]
                outcome = "did not end, see output.txt" if after is None else f"{100 * after:.1f} %"
                tell(f"{name}, seed {seed}: {outcome}, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
