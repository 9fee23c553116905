"""Measure the gateway's own time per request: everything but the model.

python benchmarks/gateway.py                             # all ways of answering, recorded in memory and in SQLite
python benchmarks/gateway.py --clients 32 --requests 40 --stores memory --answers whole engine

What is said is ready, so no model runs. An answer comes `whole`; or it is streamed: in one `burst`; step by step, every
token alone (`steps`), from a sampler on the gateway's own event loop; or as the `engine` hands it over, from a thread
of its own that adds a token to every answer in each of its steps. Every client keeps one connection and asks under its
own rollout's URL, so every call is recorded. The server has a process of its own; its CPU time over the requests is
what a request costs, the engine's thread included, whatever the clients cost beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from mini_agentic_rl.gateway import MiniLLMServer, load_tokenizer
from mini_agentic_rl.policy import Engine
from mini_agentic_rl.samplers import PolicySampler, Sampler, SamplerLoad
from mini_agentic_rl.store.open import open_store
from mini_agentic_rl.tokens import FinishReason, TokenDelta, TokenRequest
from output import deliver, make_parser

WAYS = ["whole", "burst", "steps", "engine"]
ANSWER = "The rule says that the parts are counted one after the other, and that nothing is left out. "


class ReadySampler:
    """Answers every request at once with the same tokens, step by step where that is asked for."""

    model_names: Sequence[str] = ("base", "default")
    context_length = 32_768

    def __init__(self, token_ids: Sequence[int], *, steps: bool) -> None:
        self._ids = tuple(token_ids)
        self._steps = steps

    def load(self) -> SamplerLoad:
        return SamplerLoad()

    async def complete(self, request: TokenRequest) -> AsyncGenerator[TokenDelta, None]:
        count = len(self._ids)
        if not self._steps:
            yield TokenDelta(self._ids, (-0.5,) * count, finish_reason="length", version=1)
            return
        for position, token_id in enumerate(self._ids):
            await asyncio.sleep(0)  # each token is a step of the model: the event loop may send what came before
            yield TokenDelta((token_id,), (-0.5,), finish_reason="length" if position == count - 1 else None, version=1)


class ReadyEngine:
    """Stands for the policy's engine: each of its steps adds the next token to every answer.

    Args:
        token_ids: what it answers to every request.
        step_seconds: how long a step takes.
    """

    def __init__(self, token_ids: Sequence[int], step_seconds: float) -> None:
        self._ids = tuple(token_ids)
        self._step_seconds = step_seconds
        self._running: list[tuple[Callable[[TokenDelta], None], Iterator[int]]] = []
        threading.Thread(target=self._steps, name="engine", daemon=True).start()

    def submit(self, request: TokenRequest, on_delta: Callable[[TokenDelta], None]) -> TokenRequest:
        self._running.append((on_delta, iter(range(len(self._ids)))))
        return request

    def cancel(self, sequence: TokenRequest) -> None:
        """Every answer is taken to its end here."""

    def _steps(self) -> None:
        last = len(self._ids) - 1
        while True:
            time.sleep(self._step_seconds)
            for sequence in list(self._running):
                on_delta, positions = sequence
                position = next(positions)
                if position == last:
                    self._running.remove(sequence)
                reason: FinishReason | None = "length" if position == last else None
                on_delta(TokenDelta((self._ids[position],), (-0.5,), finish_reason=reason, version=1))


def make_sampler(options: argparse.Namespace, way: str, token_ids: Sequence[int]) -> Sampler:
    """Return the sampler that answers `token_ids` in that way."""
    if way != "engine":
        return ReadySampler(token_ids, steps=way == "steps")
    engine = cast(Engine, ReadyEngine(token_ids, options.step_ms / 1000))
    return PolicySampler(engine, base_name="base", adapters=["default"], context_length=ReadySampler.context_length)


def serve(pipe: Connection, options: argparse.Namespace, spec: str, way: str) -> None:
    """Serve, in a process of its own: send the address, then the CPU seconds each time that they are asked for."""
    tokenizer = load_tokenizer(options.model)
    ids = tokenizer.encode(ANSWER * 64, add_special_tokens=False)[: options.new_tokens]
    store = open_store(spec)
    rollouts = [asyncio.run(store.start_rollout({"client": n})) for n in range(options.clients)]
    filler = tokenizer.decode(tokenizer.encode(" the rule" * options.prompt_tokens)[: options.prompt_tokens - 40])
    with MiniLLMServer(make_sampler(options, way, ids), tokenizer, model_name="bench", store=store) as server:
        urls = [server.as_resource().get_base_url(r.rollout_id, r.attempt.attempt_id) for r in rollouts]
        pipe.send({"urls": urls, "filler": filler})
        while pipe.recv() == "cpu":
            pipe.send(time.process_time())


@dataclass(frozen=True)
class Answered:
    """One request, as its client saw it."""

    seconds: float
    events: int
    """Server-sent events of the answer; none where it came whole."""


def request_bytes(url: str, body: dict[str, Any]) -> bytes:
    """A whole HTTP request, ready to be written."""
    parts = urlsplit(f"{url}/chat/completions")
    content = json.dumps(body).encode()
    head = (
        f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    """The body of one answer, of a known length or in chunks.

    Raises:
        SystemExit: it is no success.
    """
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")), None)
    body = await (reader.readuntil(b"0\r\n\r\n") if length is None else reader.readexactly(length))
    if b" 200 " not in head.split(b"\r\n")[0]:
        raise SystemExit(f"the gateway refused a request: {body[:500]!r}")
    return body


async def ask(options: argparse.Namespace, url: str, filler: str, stream: bool, count: int) -> list[Answered]:
    """Each of `count` requests of one client, one after the other."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=2**20)
    answered = []
    for number in range(count):
        messages = [
            {"role": "system", "content": filler},
            {"role": "user", "content": f"Question {number} of {url[-12:]}: what follows?"},
        ]
        content = request_bytes(url, {"model": "bench", "messages": messages, "stream": stream})
        started = time.perf_counter()
        writer.write(content)
        body = await read_answer(reader)
        answered.append(Answered(time.perf_counter() - started, body.count(b"data: ")))
    writer.close()
    return answered


async def ask_all(options: argparse.Namespace, told: dict[str, Any], stream: bool, count: int) -> list[Answered]:
    """All clients at once; every request."""
    asked = [ask(options, url, told["filler"], stream, count) for url in told["urls"]]
    return [one for row in await asyncio.gather(*asked) for one in row]


def measure(options: argparse.Namespace, store: str, way: str) -> dict[str, Any]:
    """One row: a fresh server, a warm-up, then the requests that count."""
    with tempfile.TemporaryDirectory() as folder:
        spec = str(Path(folder) / "rollouts.db") if store == "sqlite" else store
        context = multiprocessing.get_context("forkserver")  # imports once for all rows
        here, there = context.Pipe()
        process = context.Process(target=serve, args=(there, options, spec, way))
        process.start()
        there.close()
        try:
            told = here.recv()
            asyncio.run(ask_all(options, told, way != "whole", 3))
            here.send("cpu")
            before = here.recv()
            started = time.perf_counter()
            answered = asyncio.run(ask_all(options, told, way != "whole", options.requests))
            elapsed = time.perf_counter() - started
            here.send("cpu")
            cpu = here.recv() - before
            here.send("end")
        finally:
            process.join(10)
            process.terminate()
    requests = len(answered)
    return {
        "store": store,
        "answers": way,
        "clients": options.clients,
        "requests": requests,
        "cpu_ms": 1000 * cpu / requests,
        "wall_ms": 1000 * elapsed / requests,
        "latency_ms": 1000 * statistics.median(one.seconds for one in answered),
        "events": statistics.mean(one.events for one in answered),
    }


def report(console: Console, rows: list[dict[str, Any]]) -> None:
    table = Table(title=f"The gateway's own time per request, {rows[0]['clients']} clients at once")
    for name in ("recorded in", "answers", "CPU ms/request", "wall ms/request", "median latency, ms", "events/answer"):
        table.add_column(name, justify="left" if name in ("recorded in", "answers") else "right")
    for row in rows:
        cells = (f"{row['cpu_ms']:.2f}", f"{row['wall_ms']:.2f}", f"{row['latency_ms']:.1f}", f"{row['events']:.1f}")
        table.add_row(row["store"], row["answers"], *cells)
    console.print(table)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="embedded", help="folder or name of the model whose tokenizer is used")
    parser.add_argument("--clients", type=int, default=32, help="clients at once, each with one connection")
    parser.add_argument("--requests", type=int, default=40, help="requests of each client")
    parser.add_argument("--prompt-tokens", type=int, default=375, help="tokens of each prompt, about")
    parser.add_argument("--new-tokens", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--step-ms", type=float, default=20, help="milliseconds of each step of the engine")
    parser.add_argument("--stores", nargs="+", default=["memory", "sqlite"], help="memory, sqlite, or a store's URL")
    parser.add_argument("--answers", nargs="+", choices=WAYS, default=WAYS, help="how answers come")
    options = parser.parse_args()
    rows = [measure(options, store, way) for store in options.stores for way in options.answers]
    deliver(options, rows, report)


if __name__ == "__main__":
    main()
