"""Measure one store in this process and print one JSON line: what `store.py` runs for every store, ours or a peer's.

It uses only what both packages share: the names of the store contract.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import time
from typing import Any

ENQUEUES = 4


def open_store(package: str, spec: str) -> Any:
    """The in-memory store of a package, or one of ours by its spec."""
    if spec == "memory":
        return importlib.import_module(f"{package}.store.memory").InMemoryLightningStore()
    return importlib.import_module(f"{package}.store.open").open_store(spec)


async def enqueue(store: Any, count: int) -> None:
    for number in range(count):
        await store.enqueue_rollout({"question": f"{number} + 1"})


async def cycle(store: Any, span_type: Any, worker_id: str, count: int) -> None:
    """Claim, leave four spans, finish."""
    for _ in range(count):
        rollout = await store.dequeue_rollout(worker_id)
        rollout_id, attempt_id = rollout.rollout_id, rollout.attempt.attempt_id
        for _ in range(4):
            number = await store.get_next_span_sequence_id(rollout_id, attempt_id)
            span = span_type.from_attributes(
                attributes={"gen_ai.request.model": "m"},
                rollout_id=rollout_id,
                attempt_id=attempt_id,
                sequence_id=number,
                trace_id="ab" * 16,
                span_id=f"{number:016x}",
                name="openai.chat.completion",
            )
            await store.add_span(span)
        await store.update_attempt(rollout_id, attempt_id, status="succeeded")


async def rates(store: Any, span_type: Any, rollouts: int, callers: int) -> dict[str, float]:
    """Enqueues and full cycles per second, with `callers` concurrent callers in one event loop.

    An enqueue is so much cheaper that `ENQUEUES` of them are measured for each cycle.
    """
    share = rollouts // callers
    started = time.perf_counter()
    await asyncio.gather(*(enqueue(store, ENQUEUES * share) for _ in range(callers)))
    enqueued = time.perf_counter()
    await asyncio.gather(*(cycle(store, span_type, f"w{index}", share) for index in range(callers)))
    ended = time.perf_counter()
    done = share * callers
    return {"enqueues": ENQUEUES * done / (enqueued - started), "cycles": done / (ended - enqueued)}


async def measure(options: argparse.Namespace) -> dict[str, float]:
    span_type = importlib.import_module(f"{options.package}.types").Span
    store = open_store(options.package, options.store)
    try:
        await rates(store, span_type, 8 * options.callers, options.callers)
        return await rates(store, span_type, options.rollouts, options.callers)
    finally:
        if options.package != "agentlightning":
            await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", default="mini_agentic_rl", help="package whose store is measured")
    parser.add_argument("--store", default="memory", help="memory, or what open_store takes")
    parser.add_argument("--rollouts", type=int, default=2_000, help="rollouts of one measurement")
    parser.add_argument("--callers", type=int, default=1, help="concurrent callers")
    print(json.dumps(asyncio.run(measure(parser.parse_args()))))


if __name__ == "__main__":
    main()
