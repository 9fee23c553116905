"""The dashboard over a store of 100,000 rollouts and 1,000,000 spans, while a training writes into it.

    python benchmarks/dashboard.py [--rollouts 100000] [--spans 10] [--requests 200] [--folder /tmp/dashboard-store]

Makes the store, the SQLite file of a run folder, which stays in --folder for the next time; serves it in a process of
its own, and asks for each page many times while another process writes rollouts and spans as a training does. Prints
the median and the 99th percentile of each, beside the targets: 50 ms and 200 ms.

With DASHBOARD_PYTHON (an environment with Playwright) and a browser in DASHBOARD_CHROMIUM it also measures the first
paint, below 1 s, and the frames of a long scroll. What other processes of the machine do is in these figures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

from mini_agentic_rl.store import open_store
from mini_agentic_rl.types import Attempt, EnqueueRolloutRequest, Rollout, Span

ROOT = Path(__file__).resolve().parents[1]
STATUSES = ["succeeded"] * 18 + ["failed", "cancelled"]
AT_ONCE = 1000
"""Rollouts that are put into a store in one transaction."""


def main() -> None:
    """Make the store, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--spans", type=int, default=10, help="spans of each rollout")
    parser.add_argument("--requests", type=int, default=200, help="requests for each page")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "dashboard-store")
    parser.add_argument("--write", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write is not None:
        asyncio.run(write_for_ever(options.write))
        return
    kept = str(options.folder / "rollouts.db")
    options.folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(fill_once(kept, options.rollouts, options.spans))
    print(f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    with contextlib.ExitStack() as stack:

        def start(*command: str) -> subprocess.Popen[str]:
            process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
            return process

        pages = start("-m", "mini_agentic_rl", "dashboard", str(options.folder), "--port", "0")
        assert pages.stdout is not None
        root = next(word for word in pages.stdout.readline().split() if word.startswith("http")).rstrip("/;")
        start(__file__, "--write", kept)
        measure(root, options.folder.name, options.requests)


async def fill_once(spec: str, rollouts: int, spans: int) -> None:
    """Fill a store that is empty."""
    store = open_store(spec)
    started = time.perf_counter()
    if not (await store.query_rollouts(limit=1)).items:
        await fill(store, rollouts, spans)
        print(f"filled the store in {time.perf_counter() - started:.0f} s")
    await store.close()


async def fill(store: object, rollouts: int, spans: int) -> None:
    """Put the records into a store past its rules: a hundred thousand rollouts by its calls take an hour."""
    draw = random.Random(0)
    for begin in range(0, rollouts, AT_ONCE):
        made = [records(number, spans, draw) for number in range(begin, min(rollouts, begin + AT_ONCE))]

        def put(tables, made=made) -> None:
            tables.insert_rollouts([rollout for rollout, _, _ in made])
            for _, attempt, found in made:
                tables.insert_attempt(attempt, None)
                tables.insert_spans(attempt.rollout_id, attempt.attempt_id, found)

        await store.take_over(put)  # type: ignore[attr-defined]


def records(number: int, spans: int, draw: random.Random) -> tuple[Rollout, Attempt, list[Span]]:
    """Return a rollout, its attempt and its spans, as a training leaves them."""
    ids = {"rollout_id": f"ro-{number:024x}", "attempt_id": f"at-{number:024x}"}
    start = 1.7e9 + number / 10
    status = draw.choice(STATUSES)
    rollout = Rollout(
        rollout_id=ids["rollout_id"],
        input={"question": f"What is {number} + {number % 97}?", "answer": number + number % 97},
        status=status,
        mode="train",
        start_time=start,
        end_time=start + 5,
        metadata={"step": number // 64, "group": f"{number // 64}/{number % 64 // 8}"},
    )
    attempt = Attempt(
        **ids,
        sequence_id=1,
        status="succeeded" if status == "succeeded" else "failed",
        start_time=start,
        end_time=start + 5,
        worker_id=f"runner-{number % 16}",
        metadata={"error": "ValueError: no answer"} if status == "failed" else {},
    )
    found = []
    for at in range(1, spans + 1):
        name, attributes = span_of(at, spans, number, draw)
        trace = {"trace_id": f"{number:032x}", "span_id": f"{at:016x}", "sequence_id": at}
        times = {"start_time": start + at, "end_time": start + at + 0.5}
        found.append(Span(**ids, **trace, **times, name=name, attributes=attributes))
    return rollout, attempt, found


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


async def write_for_ever(spec: str) -> None:
    """Write rollouts and spans, as a training of some speed does."""
    store = open_store(spec)
    draw = random.Random(1)
    number, first = 0, int(time.time())  # no earlier writer's steps and groups
    while True:
        number += 1
        step = first + number // 64
        place = {"step": step, "group": f"{step}/{number % 64 // 8}"}
        request = EnqueueRolloutRequest(input={"question": f"live {number}"}, metadata=place)
        (rollout,) = await store.enqueue_many_rollouts([request])
        (claimed,) = await store.dequeue_many_rollouts(worker_id="runner-live")
        ids = {"rollout_id": rollout.rollout_id, "attempt_id": claimed.attempt.attempt_id}
        for at in range(1, 11):
            name, attributes = span_of(at, 10, number, draw)
            trace = {"trace_id": f"{number:032x}", "span_id": f"{at:016x}", "sequence_id": at}
            await store.add_span(Span(**ids, **trace, name=name, attributes=attributes))
        await store.update_attempt(**ids, status="succeeded")
        await asyncio.sleep(0.05)


def measure(root: str, run: str, requests: int) -> None:
    """Ask for each page many times, and print a table of the times."""
    api = f"{root}/dashboard/api/runs"
    base = f"{api}/{urllib.parse.quote(run)}"
    started = time.perf_counter()
    asked(f"{base}/rollouts?limit=100")
    print(f"first page of rollouts after {time.perf_counter() - started:.2f} s")
    draw = random.Random(2)
    newest = asked(api)["runs"][0]["totals"]["rollouts"]

    def place() -> int:
        return draw.randrange(1000, newest - newest // 10)

    def somewhere() -> str:
        return f"&cursor={place()}"

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
        "groups, newest": lambda: f"{base}/groups?limit=100",
        "groups, anywhere": lambda: f"{base}/groups?limit=100&cursor={place()}",
        "a group": lambda: f"{base}/groups/view?group={draw.randrange(newest // 128)}/{draw.randrange(8)}",
        "a rollout": lambda: f"{base}/rollouts/{rollout()}",
        "its tokens": lambda: f"{base}/rollouts/{rollout()}/tokens",
        "workers": lambda: f"{base}/workers",
        "curves": lambda: f"{base}/curves",
    }
    print(f"\n{requests} requests each\n{'page':28} {'median ms':>10} {'p99 ms':>8}")
    for name, make in pages.items():
        times = []
        for _ in range(requests):
            address = make()
            started = time.perf_counter()
            asked(address)
            times.append(1000 * (time.perf_counter() - started))
        late = sorted(times)[min(len(times) - 1, int(len(times) * 0.99))]
        middle = statistics.median(times)
        verdict = "" if middle < 50 and late < 200 else "  above the target"
        print(f"{name:28} {middle:10.1f} {late:8.1f}{verdict}", flush=True)
    browser(root, run)


def asked(address: str) -> dict:
    """Return the server's response."""
    with urllib.request.urlopen(address, timeout=120) as answer:
        return json.load(answer)


def browser(root: str, run: str) -> None:
    """Print the time to the first paint and the frames of a scroll, where there is a browser."""
    python, chromium = os.environ.get("DASHBOARD_PYTHON"), os.environ.get("DASHBOARD_CHROMIUM")
    if not (python and chromium):
        print("\nfirst paint: not measured (DASHBOARD_PYTHON and DASHBOARD_CHROMIUM name no browser)")
        return
    job = json.dumps({"root": root, "do": "paint", "address": f"#/run/{run}/rollouts"})
    script = str(ROOT / "tests/apps/dashboard/browser.py")
    done = subprocess.run([python, script, chromium, job], capture_output=True, text=True, check=True)
    print("\nin Chromium:", json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
