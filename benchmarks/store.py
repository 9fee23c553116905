"""Measure the stores: rollouts enqueued per second, and full cycles (claim, 4 spans with sequence ids, finish).

python benchmarks/store.py
python benchmarks/store.py --peer-python other-env/bin/python     # agent-lightning 0.3 side by side

Every figure comes from a fresh process; the stores take turns, and the median of the rounds counts. Callers are tasks
of one event loop. Files lie in a temporary folder; nothing stays but --output.
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
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from output import deliver, make_parser

STORES = ["memory", "sqlite", "postgres", "http-memory", "http-sqlite"]
CYCLE = Path(__file__).with_name("store_cycle.py")
PEER = "agent-lightning in memory"


def run_cycle(python: str, **options: Any) -> dict[str, float]:
    """Run `store_cycle.py` under this interpreter and return what it prints."""
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    done = subprocess.run([python, str(CYCLE), *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"measuring {options} failed:\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


@contextmanager
def server(*arguments: str) -> Iterator[str]:
    """The address of a store server in a process of its own."""
    command = [sys.executable, "-m", "mini_agentic_rl", "store", "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield next(word for line in process.stdout for word in line.split() if word.startswith("http://"))
    finally:
        process.terminate()
        process.communicate()


@contextmanager
def fresh_store(kind: str, postgres: str | None) -> Iterator[str]:
    """The spec of an empty store of this kind (a PostgreSQL database is used as it is)."""
    with tempfile.TemporaryDirectory() as folder:
        if kind == "sqlite":
            yield f"{folder}/store.db"
        elif kind == "http-memory":
            with server("--backend", "memory") as address:
                yield address
        elif kind == "http-sqlite":
            with server("--path", f"{folder}/store.db") as address:
                yield address
        else:
            yield postgres if kind == "postgres" and postgres else "memory"


def measure_rates(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each store and number of callers: median rates over the rounds."""
    kinds = [kind for kind in options.stores if kind != "postgres" or options.postgres]
    contenders = [PEER, *kinds] if options.peer_python else kinds
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    for _ in range(options.rounds):
        for callers in options.callers:
            for kind in contenders:
                with fresh_store(kind, options.postgres) as spec:
                    python, package = sys.executable, "mini_agentic_rl"
                    if kind == PEER:
                        python, package = options.peer_python, "agentlightning"
                    result = run_cycle(python, package=package, store=spec, rollouts=options.rollouts, callers=callers)
                found.setdefault((kind, callers), []).append(result)
    return [
        {
            "store": kind,
            "callers": callers,
            **{rate: statistics.median(result[rate] for result in results) for rate in ("enqueues", "cycles")},
        }
        for (kind, callers), results in found.items()
    ]


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Our rates over the peer's in-memory store, of equal numbers of callers."""
    peer = {row["callers"]: row for row in rows if row["store"] == PEER}
    return {
        f"{row['store']}, callers: {row['callers']}, {rate}": row[rate] / peer[row["callers"]][rate]
        for row in rows
        if row["store"] != PEER and row["callers"] in peer
        for rate in ("enqueues", "cycles")
    }


def report(console: Console, result: dict[str, Any]) -> None:
    table = Table("store", title="Per second; cycle: claim, 4 spans with ids, finish")
    for name in ("callers", "enqueues", "cycles"):
        table.add_column(name, justify="right")
    for row in result["rates"]:
        table.add_row(row["store"], str(row["callers"]), f"{row['enqueues']:,.0f}", f"{row['cycles']:,.0f}")
    console.print(table)
    for name, ratio in result["ratios"].items():
        console.print(f"{name}: {ratio:.2f} x agent-lightning's in-memory store", highlight=False)
    if not result["ratios"]:
        console.print("agent-lightning 0.3 was not measured: --peer-python names an environment that has it")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--stores", nargs="+", choices=STORES, default=STORES, help="which of our stores to measure")
    parser.add_argument("--rollouts", type=int, default=2_000, help="rollouts of one measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each store, in turns")
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 8], help="concurrent callers")
    parser.add_argument("--postgres", default=None, help="URL of an empty database, to measure PostgreSQL as well")
    parser.add_argument("--peer-python", default=None, help="Python of an environment with agentlightning 0.3")
    options = parser.parse_args()
    if options.peer_python is None and importlib.util.find_spec("agentlightning"):
        options.peer_python = sys.executable
    rows = measure_rates(options)
    deliver(options, {"rates": rows, "ratios": ratios(rows)}, report)


if __name__ == "__main__":
    main()
