"""Measure what a training that is spread out sends: bytes per rollout through the store, and the adapter of each step.

python benchmarks/scaling.py                                 # four calls of 375 + 64 tokens a rollout; ranks 8, 16, 64
python benchmarks/scaling.py --calls 30 --prompt-tokens 2000 --rollouts 20
python benchmarks/scaling.py --ranks 8 32 --writes 10

Runner, gateway and learner each reach one store server over HTTP through a relay that counts bytes. Nothing is sampled:
the gateway's backend has its answer ready, and records it as it records every other. Each call of a rollout asks with
the conversation so far. The adapter is written as it is for a checkpoint and for a server: whole, synced and renamed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

from openai import AsyncOpenAI
from rich.console import Console
from rich.table import Table

from gateway import ANSWER, ReadySampler
from mini_agentic_rl import LitAgent
from mini_agentic_rl.gateway import MiniLLMServer, load_tokenizer
from mini_agentic_rl.policy import LoraSettings, Policy
from mini_agentic_rl.runner import LitAgentRunner
from mini_agentic_rl.store import InMemoryLightningStore, LightningStoreClient, LightningStoreServer
from mini_agentic_rl.types import EnqueueRolloutRequest
from output import add_model_options, deliver, make_parser, tell

PARTIES = ("runner", "gateway", "learner")


class Relay:
    """Count the bytes between clients and a server."""

    def __init__(self) -> None:
        self.sent = 0
        """Bytes from clients to the server."""
        self.received = 0
        """Bytes from the server to clients."""
        self._to: tuple[str, int] = ("", 0)

    @asynccontextmanager
    async def before(self, host: str, port: int) -> AsyncIterator[str]:
        """Stand before the server; yields the relay's own URL."""
        self._to = (host, port)
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._to)
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.gather(self._pass(reader, back, "sent"), self._pass(there, writer, "received"))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: str) -> None:
        while data := await reader.read(65_536):
            setattr(self, count, getattr(self, count) + len(data))
            writer.write(data)
            await writer.drain()
        writer.close()


class Talker(LitAgent[Any]):
    """Asks several times, each time with the conversation so far."""

    def __init__(self, calls: int, prompt: str, turn: str) -> None:
        super().__init__()
        self._calls, self._prompt, self._turn = calls, prompt, turn

    async def rollout_async(self, task: Any, resources: Any, rollout: Any) -> float:
        llm = resources["llm"].for_rollout(rollout.rollout_id, rollout.attempt.attempt_id)
        messages = [{"role": "user", "content": f"{task} {self._prompt}"}]
        async with AsyncOpenAI(base_url=llm.endpoint, api_key="none") as client:
            for _ in range(self._calls):
                answer = await client.chat.completions.create(model=llm.model, messages=messages)  # type: ignore[arg-type]
                said = answer.choices[0].message.content or ""
                messages += [{"role": "assistant", "content": said}, {"role": "user", "content": self._turn}]
        return 1.0


async def through_store(options: argparse.Namespace) -> dict[str, Any]:
    """Run the rollouts; return the bytes of one of them by party, and its tokens."""
    tokenizer = load_tokenizer(options.model)
    ids = tokenizer.encode(ANSWER * 64, add_special_tokens=False)[: options.new_tokens]
    prompt = " rule" * options.prompt_tokens
    relays = {party: Relay() for party in PARTIES}
    server = LightningStoreServer(InMemoryLightningStore(), port=0)
    await server.start()
    host, _, port = server.endpoint.removeprefix("http://").rpartition(":")
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(server.close)
        stores = {}
        for party, relay in relays.items():
            url = await stack.enter_async_context(relay.before(host, int(port)))
            stores[party] = LightningStoreClient(url)
            stack.push_async_callback(stores[party].close)
        backend = ReadySampler(ids, steps=False)
        gateway = MiniLLMServer(backend, tokenizer, model_name="bench", store=stores["gateway"])
        stack.push_async_callback(asyncio.to_thread, gateway.stop)
        await asyncio.to_thread(gateway.start)
        learner = stores["learner"]
        resources = await learner.add_resources({"llm": gateway.as_resource()})
        requests = [
            EnqueueRolloutRequest(input=f"task {number}", resources_id=resources.resources_id)
            for number in range(options.rollouts)
        ]
        enqueued = await learner.enqueue_many_rollouts(requests)
        runner: LitAgentRunner[Any] = LitAgentRunner(max_rollouts=options.rollouts)
        started = time.perf_counter()
        agent = Talker(options.calls, prompt, options.turn)
        with runner.run_context(agent=agent, store=stores["runner"], worker_id=0):
            running = asyncio.ensure_future(runner.iter())
            finished = await learner.wait_for_rollouts(rollout_ids=[one.rollout_id for one in enqueued], timeout=600)
            await running
        seconds = time.perf_counter() - started
        spans = [await learner.query_spans(one.rollout_id) for one in finished]
    if {one.status for one in finished} != {"succeeded"}:
        raise SystemExit(f"rollouts failed: {[one.status for one in finished]}")
    count = options.rollouts
    return {
        "rollouts": count,
        "calls": options.calls,
        "new_tokens": options.calls * len(ids),
        "spans": len(spans[0]),
        "seconds_per_rollout": seconds / count,
        **{f"{party}_sent": relay.sent / count for party, relay in relays.items()},
        **{f"{party}_received": relay.received / count for party, relay in relays.items()},
        "bytes": sum(relay.sent + relay.received for relay in relays.values()) / count,
    }


def adapters(options: argparse.Namespace, ranks: Sequence[int]) -> list[dict[str, Any]]:
    """Write the adapter of each rank several times; return its bytes and the median seconds."""
    rows = []
    for rank in ranks:
        tell(f"adapter of rank {rank}")
        policy = Policy.load(options.model, dtype=options.dtype, device=options.device, lora=LoraSettings(r=rank))
        try:
            with tempfile.TemporaryDirectory() as name:
                seconds = []
                for number in range(options.writes):
                    started = time.perf_counter()
                    policy.save(Path(name, str(number)))
                    seconds.append(time.perf_counter() - started)
                written = sum(path.stat().st_size for path in Path(name, "0").rglob("*") if path.is_file())
            weights = sum(one.numel() for one in policy.model.trainable())
        finally:
            policy.close()
        rows.append({"rank": rank, "weights": weights, "bytes": written, "seconds": median(seconds)})
    return rows


def report(console: Console, result: dict[str, Any]) -> None:
    """Print both tables."""
    found = result["store"]
    table = Table(title=f"Through the store: a rollout of {found['calls']} calls, {found['new_tokens']} sampled tokens")
    for name in ("party", "kB to the store", "kB from it"):
        table.add_column(name, justify="left" if name == "party" else "right")
    for party in PARTIES:
        table.add_row(party, f"{found[f'{party}_sent'] / 1e3:.1f}", f"{found[f'{party}_received'] / 1e3:.1f}")
    table.add_section()
    table.add_row("all", "", f"{found['bytes'] / 1e3:.1f}")
    console.print(table)
    table = Table(title="An adapter, written and synced")
    for name in ("rank", "weights", "MB", "s"):
        table.add_column(name, justify="right")
    for row in result["adapters"]:
        table.add_row(str(row["rank"]), f"{row['weights']:,}", f"{row['bytes'] / 1e6:.1f}", f"{row['seconds']:.2f}")
    console.print(table)


def main() -> None:
    parser = make_parser(__doc__)
    add_model_options(parser)
    parser.add_argument("--rollouts", type=int, default=50, help="rollouts to run")
    parser.add_argument("--calls", type=int, default=4, help="model calls of a rollout")
    parser.add_argument("--prompt-tokens", type=int, default=375, help="tokens of the first prompt, about")
    parser.add_argument("--new-tokens", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--turn", default="Go on." * 10, help="what the agent says between two calls")
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 16, 64], help="ranks of adapters to write")
    parser.add_argument("--writes", type=int, default=5, help="how often each adapter is written")
    options = parser.parse_args()
    result = {"store": asyncio.run(through_store(options)), "adapters": adapters(options, options.ranks)}
    deliver(options, result, report)


if __name__ == "__main__":
    main()
