"""Write the page of results from the figures of benchmarks, trained runs, attacks and the code's structure.

python benchmarks/results.py                         # write benchmarks/RESULTS.md anew
python benchmarks/grpo_step.py --output step.json    # measure something
python benchmarks/results.py step.json               # add its ratios to results.csv, and write the page

Inputs: `results.csv` beside this script (figures of benchmarks), `docs/reference-points.csv` (one row a trained run, by
`learning.py`), `docs/attacks.csv` (by `make torture`), and the checkout itself (`structure.py`). The figures of JSON
files that the benchmarks write with `--output` are added to `results.csv`; a figure with the same area and name is
replaced.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from learning import DOCUMENTED, agent_row
from output import tell
from structure import Checkout

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
FIGURES, PAGE = HERE / "results.csv", HERE / "RESULTS.md"
RUNS, ATTACKS = ROOT / "docs" / "reference-points.csv", ROOT / "docs" / "attacks.csv"

OPENING = """# Results

Speed, memory, learning, robustness and size, each with the command that measures it. `python benchmarks/results.py`
writes this page from [results.csv](results.csv), [reference-points.csv](../docs/reference-points.csv) and
[attacks.csv](../docs/attacks.csv). Earlier measurements and experiments are in [dev/LOG.md](../dev/LOG.md).

A ratio compares two sides that were measured in turns in one run. Where the peer is another project, a ratio above 1
is in favour of mini-agentic-rl. The model is SmolLM2-135M-Instruct and LoRA has rank 8, unless the row says otherwise.
"""


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def add(figures: list[dict[str, str]], path: Path) -> None:
    """Add the ratios of a benchmark's JSON to the figures; they replace those of the same area and name."""
    result = json.loads(path.read_text(encoding="utf-8"))
    if "measured" not in result:
        raise SystemExit(f"{path} has no ratios: give a file that a benchmark wrote with --output")
    measured = result["measured"]
    area = measured["command"].split()[1].removeprefix("benchmarks/").removesuffix(".py")
    command = measured["command"].removeprefix("python benchmarks/")
    for name, ratio in result["ratios"].items():
        row = dict.fromkeys(figures[0], "") | measured
        row |= {"area": area, "figure": name, "ratio": f"{ratio:.3g}", "command": command}
        figures[:] = [old for old in figures if (old["area"], old["figure"]) != (area, name)] + [row]


def table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    lines += [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def figures_table(rows: Sequence[dict[str, str]]) -> str:
    """Return the table of an area: figures of both sides, their ratio, and when, where and how they were measured."""
    return table(
        ["figure", "ours", "peer", "ratio", "measured", "command"],
        (
            [
                row["figure"],
                f"{row['ours']} {row['unit']}".strip() if row["ours"] else "",
                f"{row['peer']} ({row['peer name']})" if row["peer"] else "",
                f"**{row['ratio']}**" if row["ratio"] else "",
                ", ".join(filter(None, (row["date"], row["commit"], row["machine"]))),
                f"`{row['command']}`",
            ]
            for row in rows
        ),
    )


def learning_table() -> str:
    """Return one row for each documented agent, from its runs."""
    runs = [{name: _number(value) for name, value in run.items()} for run in read(RUNS)]
    agents = [agent_row(name, own) for name in DOCUMENTED if (own := [run for run in runs if run["agent"] == name])]
    percent = [[agent["agent"], agent["runs"], *(_percent(agent[name]) for name in _SHARES)] for agent in agents]
    times = [[f"{agent['minutes']:.1f}", f"{agent['GiB']:.1f}"] for agent in agents]
    names = ["agent", "runs", *(f"{name}, %" for name in _SHARES), "minutes", "GiB"]
    return table(names, (shares + cost for shares, cost in zip(percent, times, strict=True)))


_SHARES = ("before", "warm-up", "after", "worst", "gain", "lowest bound", "on rewards")


def _number(value: str) -> Any:
    try:
        return float(value)
    except ValueError:
        return value or None


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


def attacks_table() -> str:
    rows = read(ATTACKS)
    tried, held = (sum(int(row[name]) for row in rows) for name in ("tried", "held"))
    return table(["kinds of attacks", "tried", "held"], [[len(rows), f"{tried:,}", f"{held:,}"]])


def structure_table() -> str:
    checkout = Checkout(ROOT)
    wings = ("recipes", "integrations", "apps")
    rooms = checkout.rooms()
    parts = {
        "core": [size for room, size in rooms.items() if room not in wings],
        "recipes, integrations, apps": [rooms[wing] for wing in wings],
    }
    rows = [
        [name, f"{sum(size['lines'] for size in sizes):,}", sum(size["files"] for size in sizes)]
        for name, sizes in parts.items()
    ]
    tests = [path.read_text(encoding="utf-8").count("\n") for path in (ROOT / "tests").rglob("*.py")]
    return table(["part", "lines", "files"], [*rows, ["tests", f"{sum(tests):,}", len(tests)]])


def page(figures: Sequence[dict[str, str]]) -> str:
    """Return the whole page as Markdown."""
    parts = [OPENING]
    parts += ["## Learning\n", learning_table()]
    parts += [
        "Medians over runs in percent; `worst` and `lowest bound` are minima. [Details](../docs/reference-points.md).\n"
    ]
    for area in dict.fromkeys(row["area"] for row in figures):
        parts += [f"## {area}\n", figures_table([row for row in figures if row["area"] == area])]
    parts += ["## Robustness\n", attacks_table(), "`make torture` runs them ([reliability](../docs/reliability.md)).\n"]
    parts += ["## Size of the code\n", structure_table(), "`python benchmarks/structure.py` has it by package.\n"]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="JSON that benchmarks wrote with --output")
    options = parser.parse_args()
    figures = read(FIGURES)
    for path in options.files:
        add(figures, path)
    if options.files:
        with FIGURES.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(figures[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(figures)
    PAGE.write_text(page(figures), encoding="utf-8")
    tell(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
