"""Measure the stores: rollouts enqueued per second, and full cycles (claim, 4 spans with sequence ids, finish).

python benchmarks/store.py
python benchmarks/store.py --peer-python other-env/bin/python     # agent-lightning 0.3 side by side
python benchmarks/store.py --sizes 1000 10000 100000              # cost of single operations
python benchmarks/store.py --claims 10000                         # 8 processes on one file, and on one server

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
import time
from collections import Counter
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

SERVE = "from mini_agentic_rl.cli import app; app()"
CLAIM = """
import asyncio, json, sys
from mini_agentic_rl.store.open import open_store

async def main():
    store, claimed = open_store(sys.argv[1]), []
    while (rollout := await store.dequeue_rollout(sys.argv[2])) is not None:
        await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
        claimed.append(rollout.rollout_id)
    print(json.dumps(claimed))
    await store.close()

print("ready", flush=True)
input()
asyncio.run(main())
"""
ENQUEUE = """
import asyncio, sys
from mini_agentic_rl.store.open import open_store
from mini_agentic_rl.types import EnqueueRolloutRequest

async def main():
    store = open_store(sys.argv[1])
    for start in range(0, int(sys.argv[2]), 500):
        count = min(500, int(sys.argv[2]) - start)
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=start + n) for n in range(count)])
    await store.close()

asyncio.run(main())
"""


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
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, "store", "--port", "0", *arguments], stdout=subprocess.PIPE, text=True
    )
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


def measure_sizes(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each store and operation: microseconds at each number of rollouts."""
    rows = []
    for kind in [kind for kind in ("memory", "sqlite") if kind in options.stores]:
        costs = {}
        for size in options.sizes:
            with fresh_store(kind, None) as spec:
                costs[size] = run_cycle(sys.executable, store=spec, size=size)
        for operation in costs[options.sizes[0]]:
            rows.append(
                {"store": kind, "operation": operation, **{str(size): costs[size][operation] for size in options.sizes}}
            )
    return rows


def measure_claims(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each store: processes claim every rollout of it, and each is claimed once."""
    rows = []
    for kind in [kind for kind in ("sqlite", "http-memory", "http-sqlite") if kind in options.stores]:
        with fresh_store(kind, None) as spec:
            subprocess.run([sys.executable, "-c", ENQUEUE, spec, str(options.claims)], check=True)
            processes = [
                subprocess.Popen(
                    [sys.executable, "-c", CLAIM, spec, f"w{index}"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for index in range(options.processes)
            ]
            for process in processes:
                assert process.stdout is not None
                process.stdout.readline()
            started = time.perf_counter()
            for process in processes:
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
            claims = [json.loads(process.communicate()[0]) for process in processes]
            seconds = time.perf_counter() - started
        times = Counter(rollout_id for claim in claims for rollout_id in claim)
        rows.append(
            {
                "store": kind,
                "processes": options.processes,
                "rollouts": options.claims,
                "claimed": len(times),
                "claimed twice": sum(count > 1 for count in times.values()),
                "claims": options.claims / seconds,
            }
        )
    return rows


def table(title: str, rows: list[dict[str, Any]]) -> Table:
    made = Table(title=title)
    for index, name in enumerate(rows[0]):
        made.add_column(name, justify="right" if index else "left")
    for row in rows:
        made.add_row(*(f"{value:,.0f}" if isinstance(value, float) else str(value) for value in row.values()))
    return made


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
    if "rates" in result:
        console.print(table("Per second; cycle: claim, 4 spans with ids, finish", result["rates"]))
    if "sizes" in result:
        console.print(table("Microseconds of a call, by rollouts in the store", result["sizes"]))
    if "claims" in result:
        console.print(table("Processes on one store; claims per second", result["claims"]))
    if result.get("ratios"):
        for name, ratio in result["ratios"].items():
            console.print(f"{name}: {ratio:.2f} x agent-lightning's in-memory store", highlight=False)
    elif "rates" in result:
        console.print("agent-lightning 0.3 was not measured: --peer-python names an environment that has it")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--stores", nargs="+", choices=STORES, default=STORES, help="which of our stores to measure")
    parser.add_argument("--rollouts", type=int, default=2_000, help="rollouts of one measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each store, in turns")
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 8], help="concurrent callers")
    parser.add_argument("--postgres", default=None, help="URL of an empty database, to measure PostgreSQL as well")
    parser.add_argument("--peer-python", default=None, help="Python of an environment with agentlightning 0.3")
    parser.add_argument("--sizes", type=int, nargs="+", default=None, help="cost of single operations at these sizes")
    parser.add_argument("--claims", type=int, default=None, help="rollouts for processes to claim from one store")
    parser.add_argument("--processes", type=int, default=8, help="how many processes claim")
    options = parser.parse_args()
    if options.peer_python is None and importlib.util.find_spec("agentlightning"):
        options.peer_python = sys.executable

    result: dict[str, Any] = {}
    if options.sizes:
        result["sizes"] = measure_sizes(options)
    if options.claims:
        result["claims"] = measure_claims(options)
    if not result:
        result["rates"] = measure_rates(options)
        result["ratios"] = ratios(result["rates"])
    deliver(options, result, report)


if __name__ == "__main__":
    main()
