"""The output of every benchmark: a table for a person, JSON for a script, and a file."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that keeps the lines of its description, with the options of `deliver`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--output", type=Path, default=None, help="file for the JSON")
    return parser


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the model, its type and its device."""
    parser.add_argument("--model", default="embedded", help="folder or name of the model")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"], help="type of the weights")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto")


def tell(text: str) -> None:
    """Say on standard error what was measured, or is about to be: a side can take many minutes."""
    Console(stderr=True).print(text, style="dim", highlight=False)


def measured() -> dict[str, str]:
    """Return when, where and how this process measures: date, commit, machine and command."""
    here = Path(__file__).parent
    git = subprocess.run(["git", "-C", str(here), "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True)
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text(encoding="utf-8").splitlines() if cpus.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "date": datetime.date.today().isoformat(),
        "commit": git.stdout.strip(),
        "machine": f"{len(names)} x {names[0]}" if names else platform.processor(),
        "command": f"python benchmarks/{Path(sys.argv[0]).name} {shlex.join(sys.argv[1:])}".strip(),
    }


def deliver(options: argparse.Namespace, result: Any, report: Callable[[Console, Any], None]) -> None:
    """Write and print `result` as the options say; `report` prints it for a person.

    JSON of a result with `ratios` also says when, where and how they were measured; `results.py` reads such files.
    """
    if isinstance(result, dict) and "ratios" in result:
        result = {"measured": measured(), **result}
    if options.output is not None:
        options.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        report(Console(), result)
