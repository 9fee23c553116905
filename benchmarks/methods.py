"""Compare published algorithms on one small task, over several seeds: what each learns from rewards alone.

python benchmarks/methods.py                                  # all presets, three seeds: an hour on two cores
python benchmarks/methods.py --presets grpo maxrl --seeds 0 1 --steps 15 --folder outputs/methods

The task: a judge of reviews, which knows what it reads and answers in sentences; one right word earns 1, anything else
0. Nothing is imitated. Held out are things and words that training never shows. All presets share the learning rate,
the tasks and the seeds, which is fair to none that wants another rate. A run that is finished in the folder is not run
again, so a comparison that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from openai import OpenAI
from rich.console import Console
from rich.table import Table

from mini_agentic_rl import LLM, MiniGRPO, Trainer, llm_rollout
from mini_agentic_rl.metrics import read_metrics
from mini_agentic_rl.trainer.run_folder import RunFolder
from output import add_model_options, deliver, make_parser, tell

Task = dict[str, str]

TRAINED = {
    "things": ("film", "hotel", "meal", "book", "concert", "phone"),
    "positive": ("great", "lovely", "superb", "a joy"),
    "negative": ("awful", "boring", "dreadful", "a mess"),
}
HELD_OUT = {
    "things": ("trip", "game", "course"),
    "positive": ("wonderful", "excellent", "a delight", "charming", "brilliant", "first-rate"),
    "negative": ("terrible", "a disaster", "horrible", "poor", "a waste of money", "disappointing"),
}
PRESETS = ("grpo", "maxrl", "dr_grpo", "gspo", "cispo", "rloo", "dppo", "icepop", "dapo")


def reviews(parts: dict[str, Sequence[str]]) -> list[Task]:
    """Return a task for each thing and each word."""
    return [
        {"review": f"The {thing} was {word}.", "answer": answer}
        for thing in parts["things"]
        for answer in ("positive", "negative")
        for word in parts[answer]
    ]


@llm_rollout
def judge(task: Task, llm: LLM) -> float:
    """Ask whether a review is positive, and earn 1 for the right word alone."""
    client = OpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none")
    question = f"Is this review positive or negative? Answer with one word. Review: {task['review']}"
    reply = client.chat.completions.create(
        model=llm.model, messages=[{"role": "user", "content": question}], **llm.sampling_parameters
    )
    return float((reply.choices[0].message.content or "").strip(" .").lower() == task["answer"])


def train(options: argparse.Namespace, preset: str, seed: int, folder: Path) -> None:
    """Train once, into a folder that goes on with what it holds."""
    algorithm = MiniGRPO(
        options.model,
        preset=preset,
        total_steps=options.steps,
        max_new_tokens=8,
        seed=seed,
        eval_size=None,
        load_options={"dtype": options.dtype, "device": options.device},
    )
    trainer = Trainer(algorithm=algorithm, n_runners=16, output_dir=folder, resume=folder.exists())
    trainer.fit(judge, reviews(TRAINED), val_dataset=reviews(HELD_OUT))


def read(folder: Path) -> dict[str, float]:
    """Return the held-out accuracy at the end of a run, and its mean reward over all steps."""
    run = RunFolder(folder)
    last = run.read_summary()["accuracy"][-1]
    rewards = [row["reward/mean"] for row in read_metrics(run.metrics_path) if "reward/mean" in row]
    return {"accuracy": last["correct"] / last["count"], "reward": mean(rewards)}


def measure_all(options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """Return what each seed gave, by preset."""
    found: dict[str, list[dict[str, float]]] = {}
    for seed, preset in product(options.seeds, options.presets):
        folder = options.folder / f"{preset}-{seed}"
        if not (folder / "summary.json").exists():
            train(options, preset, seed, folder)
        found.setdefault(preset, []).append(read(folder))
        tell(f"{preset}, seed {seed}: {json.dumps(found[preset][-1])}")
    return found


def report(console: Console, found: dict[str, list[dict[str, float]]]) -> None:
    """Print a table."""
    table = Table(
        "preset", "seeds", "held-out accuracy", "lowest to highest", "mean reward of all steps", "lowest to highest"
    )
    for preset, runs in found.items():
        cells = [preset, str(len(runs))]
        for name in ("accuracy", "reward"):
            values = [run[name] for run in runs]
            cells.append(f"{100 * mean(values):.1f} %" if name == "accuracy" else f"{mean(values):.3f}")
            cells.append(f"{_told(name, min(values))} to {_told(name, max(values))}")
        table.add_row(*cells)
    console.print(table)


def _told(name: str, value: float) -> str:
    return f"{100 * value:.1f}" if name == "accuracy" else f"{value:.3f}"


def main(arguments: Any = None) -> None:
    """Run the comparison that the command line asks for."""
    parser = make_parser(__doc__)
    add_model_options(parser)
    parser.add_argument("--presets", nargs="+", default=PRESETS, choices=PRESETS, help="algorithms to compare")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="seeds of each")
    parser.add_argument("--steps", type=int, default=12, help="steps of 8 tasks, 8 rollouts each")
    parser.add_argument("--folder", type=Path, default=Path("outputs/methods"), help="where the runs are kept")
    options = parser.parse_args(arguments)
    deliver(options, measure_all(options), report)


if __name__ == "__main__":
    main()
