"""The dashboard over a store of 100,000 rollouts and 1,000,000 spans, while a training writes into it.

    python benchmarks/dashboard.py [--rollouts 100000] [--spans 10] [--requests 200] [--folder /tmp/dashboard-store]

Makes the store (kept in --folder for the next time), serves it in a process of its own, and asks for each page many
times while another process writes rollouts and spans as a training does; prints the median and the 99th percentile of
each, beside the targets: 50 ms and 200 ms. With DASHBOARD_PYTHON (an environment with Playwright) and a browser in
DASHBOARD_CHROMIUM it also measures the first paint, below 1 s, and the frames of a long scroll. What other processes of
the machine do is in these figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from mini_agentic_rl import SqlLightningStore
from mini_agentic_rl.types import EnqueueRolloutRequest, Span

ROOT = Path(__file__).resolve().parents[1]
STATUSES = ["succeeded"] * 18 + ["failed", "cancelled"]


def main() -> None:
    """Make the store, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--spans", type=int, default=10, help="spans of each rollout")
    parser.add_argument("--requests", type=int, default=200, help="requests for each page")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "dashboard-store")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write is not None:
        asyncio.run(write_for_ever(options.write))
        return
    path = options.folder / "rollouts.db"
    if not path.exists():
        started = time.perf_counter()
        make_store(path, options.rollouts, options.spans)
        print(f"made {path} in {time.perf_counter() - started:.0f} s")
    print(
        f"{path.stat().st_size / 2**30:.2f} GiB, load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"
    )
    command = [sys.executable, "-m", "mini_agentic_rl", "dashboard", str(options.folder), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    writer = subprocess.Popen([sys.executable, __file__, "--write", str(path)])
    try:
        assert server.stdout is not None
        root = server.stdout.readline().split()[4].rstrip("/;")
        measure(root, options.folder.name, options.requests)
    finally:
        for process in (server, writer):
            process.terminate()
            process.wait(60)


def make_store(path: Path, rollouts: int, spans: int) -> None:
    """Write the rows as the store writes them, past it: a hundred thousand rollouts through it take an hour."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name("part.db")
    part.unlink(missing_ok=True)
    asyncio.run(begin(part))
    draw = random.Random(0)
    database = sqlite3.connect(part, isolation_level=None)
    database.execute("PRAGMA synchronous=OFF")
    names = (
        "rollout_id, status, mode, resources_id, start_time, end_time, input_json, config_json, metadata_json, attempts"
    )
    put_rollout = f"INSERT INTO agl_rollouts ({names}) VALUES (?, ?, 'train', NULL, ?, ?, ?, '{{}}', ?, 1)"
    names = (
        "rollout_id, attempt_id, sequence_id, status, start_time, end_time, worker_id, metadata_json, last_span_number"
    )
    put_attempt = f"INSERT INTO agl_attempts ({names}) VALUES (?, ?, 1, ?, ?, ?, ?, ?, ?)"
    names = "rollout_id, attempt_id, sequence_id, trace_id, span_id, parent_id, name, start_time, end_time, body_json"
    put_span = f"INSERT INTO agl_spans ({names}) VALUES (?, ?, ?, ?, ?, NULL, ?, ?, ?, ?)"
    database.execute("BEGIN")
    for number in range(rollouts):
        rollout, attempt, start = f"ro-{number:024x}", f"at-{number:024x}", 1.7e9 + number / 10
        status = draw.choice(STATUSES)
        task = json.dumps({"question": f"What is {number} + {number % 97}?", "answer": number + number % 97})
        metadata = json.dumps({"step": number // 64, "group": f"{number // 64}/{number % 64 // 8}"})
        database.execute(put_rollout, (rollout, status, start, start + 5, task, metadata))
        error = json.dumps({"error": "ValueError: no answer"} if status == "failed" else {})
        worker = f"runner-{number % 16}"
        ended = "succeeded" if status == "succeeded" else "failed"
        database.execute(put_attempt, (rollout, attempt, ended, start, start + 5, worker, error, spans))
        rows = []
        for at in range(1, spans + 1):
            name, attributes = span_of(at, spans, number, draw)
            body = json.dumps({"attributes": attributes, "status": {"status_code": "OK"}, "events": [], "links": []})
            rows.append(
                (rollout, attempt, at, f"{number:032x}", f"{at:016x}", name, start + at, start + at + 0.5, body)
            )
        database.executemany(put_span, rows)
    database.execute("COMMIT")
    database.close()
    part.rename(path)


async def begin(path: Path) -> None:
    """Make an empty store."""
    store = SqlLightningStore(path)
    await store.query_rollouts(limit=1)
    await store.close()


def span_of(at: int, spans: int, number: int, draw: random.Random) -> tuple[str, dict]:
    """Return name and attributes of a span: calls of the model, calls of a tool, and the reward at the end."""
    if at == spans:
        reward = {
            "agentlightning.reward.0.name": "primary",
            "agentlightning.reward.0.value": float(draw.random() < 0.4),
        }
        return "agentlightning.annotation", reward
    if at % 2:
        said = [{"role": "user", "content": f"What is {number} + {number % 97}? Use the calculator."}] * (at // 2 + 1)
        ids = [draw.randrange(49_000) for _ in range(60)]
        return "openai.chat.completion", {
            "gen_ai.request.model": "policy",
            "gen_ai.input.messages": json.dumps(said),
            "gen_ai.output.messages": json.dumps({"role": "assistant", "content": f"It is {number}, said {at} times."}),
            "prompt_token_ids": ids[:36],
            "response_token_ids": ids[36:],
            "response_logprobs": [-draw.random() for _ in ids[36:]],
            "policy_version": number // 64,
        }
    return "calculate", {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "calculate"}


async def write_for_ever(path: Path) -> None:
    """Write rollouts and spans, as a training of some speed does."""
    store = SqlLightningStore(path)
    draw = random.Random(1)
    number = 0
    while True:
        number += 1
        (rollout,) = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input={"question": f"live {number}"})])
        (claimed,) = await store.dequeue_many_rollouts(worker_id="runner-live")
        ids = {"rollout_id": rollout.rollout_id, "attempt_id": claimed.attempt.attempt_id}
        for at in range(1, 11):
            name, attributes = span_of(at, 10, number, draw)
            trace = {"trace_id": f"{number:032x}", "span_id": f"{at:016x}", "sequence_id": at}
            await store.add_span(Span(**ids, **trace, name=name, attributes=attributes))
        await store.update_attempt(**ids, status="succeeded")
        await asyncio.sleep(0.05)


def measure(root: str, run: str, requests: int) -> None:
    """Ask for each page while the store is being indexed, and all of it again once it is."""
    api = f"{root}/dashboard/api/runs"
    base = f"{api}/{urllib.parse.quote(run)}"
    started = time.perf_counter()
    asked(f"{base}/rollouts?limit=100")
    print(f"first page of rollouts after {time.perf_counter() - started:.2f} s")
    tables = {"first, while the spans are read once": requests // 4}
    measure_pages(tables, api, base)
    while (totals := asked(api)["runs"][0]["totals"])["indexed"] < totals["spans"] - 5000:
        time.sleep(1)
    print(f"all spans were read once after {time.perf_counter() - started:.0f} s")
    measure_pages({"then": requests}, api, base)
    browser(root, run)


def measure_pages(tables: dict[str, int], api: str, base: str) -> None:
    """Print a table of the pages' times."""
    draw = random.Random(2)
    newest = asked(f"{base}/rollouts?limit=1")["items"][0]["number"]

    def somewhere() -> str:
        return f"&cursor={draw.randrange(1000, newest)}"

    def rollout() -> str:
        return f"ro-{draw.randrange(newest // 2):024x}"

    pages = {
        "runs": lambda: api,
        "rollouts, newest": lambda: f"{base}/rollouts?limit=100",
        "rollouts, anywhere": lambda: f"{base}/rollouts?limit=100{somewhere()}",
        "rollouts, failed": lambda: f"{base}/rollouts?limit=100&status=failed{somewhere()}",
        "rollouts, reward 1": lambda: f"{base}/rollouts?limit=100&reward_min=1{somewhere()}",
        "rollouts, of a worker": lambda: f"{base}/rollouts?limit=100&worker=runner-3{somewhere()}",
        "rollouts, text in the task": lambda: f"{base}/rollouts?limit=100&task={draw.randrange(newest)}",
        "rollouts, text anywhere": lambda: f"{base}/rollouts?limit=100&text=said+{draw.randrange(99)}+times",
        "groups": lambda: f"{base}/groups?limit=100",
        "a group": lambda: f"{base}/groups/view?group={draw.randrange(newest // 128)}/{draw.randrange(8)}",
        "a rollout": lambda: f"{base}/rollouts/{rollout()}",
        "its tokens": lambda: f"{base}/rollouts/{rollout()}/tokens",
        "workers": lambda: f"{base}/workers",
        "curves": lambda: f"{base}/curves",
    }
    for title, count in tables.items():
        print(f"\n{title}: {count} requests each\n{'page':28} {'median ms':>10} {'p99 ms':>8}")
        for name, make in pages.items():
            times = []
            for _ in range(count):
                address = make()
                started = time.perf_counter()
                asked(address, may_be_missing=name == "a group")
                times.append(1000 * (time.perf_counter() - started))
            late = sorted(times)[min(len(times) - 1, int(len(times) * 0.99))]
            middle = statistics.median(times)
            verdict = "" if middle < 50 and late < 200 else "  above the target"
            print(f"{name:28} {middle:10.1f} {late:8.1f}{verdict}", flush=True)


def asked(address: str, *, may_be_missing: bool = False) -> dict:
    """Return what the server answers."""
    try:
        with urllib.request.urlopen(address, timeout=120) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if may_be_missing and error.code == 404:  # its facts are not read yet
            return {}
        raise


def browser(root: str, run: str) -> None:
    """Print the time to the first paint and the frames of a scroll, where there is a browser."""
    python, chromium = os.environ.get("DASHBOARD_PYTHON"), os.environ.get("DASHBOARD_CHROMIUM")
    if not (python and chromium):
        print("\nfirst paint: not measured (DASHBOARD_PYTHON and DASHBOARD_CHROMIUM name no browser)")
        return
    job = json.dumps({"root": root, "do": "paint", "address": f"#/run/{run}/rollouts"})
    script = str(ROOT / "tests/dashboard/browser.py")
    done = subprocess.run([python, script, chromium, job], capture_output=True, text=True, check=True)
    print("\nin Chromium:", json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
