"""Measure the reward service: one batch against one request after the other, and many clients at once.

python benchmarks/score.py                          # a reward model of the embedded model's size, with a random head
python benchmarks/score.py --model outputs/reward-model --answers 8 --clients 32

Texts are arithmetic word problems with short worked answers: several answers to each problem, as reinforcement learning
sends them, and one answer to each. The server has a process of its own and is asked over HTTP. One by one, a client
waits for each score before it sends the next text; in a batch it sends all of them at once; then many clients send one
text each, again and again.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from rich.console import Console
from rich.table import Table
from transformers import AutoModelForSequenceClassification

from mini_agentic_rl.apps.reward_service import BatchSettings, RewardModel, ScoreServer, load_scorer
from mini_agentic_rl.datasets import ArithmeticDataset
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.gateway import load_tokenizer
from mini_agentic_rl.policy import resolve_device, resolve_dtype, resolve_model
from output import add_model_options, deliver, make_parser

WAYS = ["shared prompts", "different prompts"]


def texts(count: int, answers: int) -> list[dict[str, str]]:
    """`count` texts: so many worked answers to each problem, which differ from their first word on."""
    problems = ArithmeticDataset(size=-(-count // answers), difficulty=(1, 2))
    found = []
    for number in range(count):
        row = problems[number // answers]
        reason = f"{row['thought']} {row['expression']} = {row['answer']}"
        guess = f"{number * 37 % 997}? No. {reason}, so I say {row['answer']}."
        found.append({"prompt": row["question"], "response": guess})
    return found


def load(options: argparse.Namespace) -> RewardModel:
    """The reward model; of a language model one with a new head, which is as fast as a trained one."""
    try:
        return load_scorer(options.model, device=options.device, dtype=options.dtype)
    except UserError:
        device = resolve_device(options.device)
        path = resolve_model(options.model)
        model = AutoModelForSequenceClassification.from_pretrained(
            path, num_labels=1, dtype=resolve_dtype(options.dtype, device)
        )
        return RewardModel(model.to(device), load_tokenizer(path), options.model)


def serve(pipe: Connection, options: argparse.Namespace) -> None:
    """Serve, in a process of its own: send the port, and run until told to end."""
    batches = BatchSettings(batch_size=options.batch_size, batch_wait_ms=options.batch_wait_ms)
    with ScoreServer(load(options), batches=batches) as server:
        pipe.send(server.port)
        pipe.recv()


class Client:
    """One connection that stays open."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer.

        Raises:
            SystemExit: it is no success.
        """
        self._connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise SystemExit(f"the service refused a request: {content[:500]!r}")
        found: dict[str, Any] = json.loads(content)
        return found


def one_by_one(port: int, items: list[dict[str, str]]) -> tuple[list[float], list[float]]:
    """Scores, and the seconds that each took."""
    client, scores, spent = Client(port), [], []
    for item in items:
        started = time.perf_counter()
        scores.append(client.post("/score", item)["score"])
        spent.append(time.perf_counter() - started)
    return scores, spent


def measure(port: int, options: argparse.Namespace, way: str) -> dict[str, Any]:
    """One row: after a warm-up the same texts one by one and in a batch, in turns, then from many clients."""
    items = texts(options.texts, options.answers if way == WAYS[0] else 1)
    client = Client(port)
    client.post("/score/batch", {"items": items})
    one_by_one(port, items[:4])
    single, batch, difference = [], [], 0.0
    for _ in range(options.rounds):
        scores, spent = one_by_one(port, items)
        single.append(sum(spent))
        started = time.perf_counter()
        together = client.post("/score/batch", {"items": items})
        batch.append(time.perf_counter() - started)
        difference = max(difference, *(abs(a - b) for a, b in zip(scores, together["scores"], strict=True)))
    shares = [[items[(n + k) % len(items)] for k in range(options.requests)] for n in range(options.clients)]
    with ThreadPoolExecutor(options.clients) as clients:
        list(clients.map(lambda share: one_by_one(port, share[:1]), shares))
        started = time.perf_counter()
        spent = [s for _, row in clients.map(lambda share: one_by_one(port, share), shares) for s in row]
        elapsed = time.perf_counter() - started
    spent.sort()
    return {
        "texts": way,
        "count": len(items),
        "tokens": statistics.mean(together["tokens"]),
        "one_by_one_per_s": len(items) / statistics.median(single),
        "batch_per_s": len(items) / statistics.median(batch),
        "largest_difference": difference,
        "clients": options.clients,
        "clients_per_s": len(spent) / elapsed,
        "p50_ms": 1000 * statistics.median(spent),
        "p99_ms": 1000 * spent[min(len(spent) - 1, int(0.99 * len(spent)))],
        "ratio": statistics.median(single) / statistics.median(batch),
    }


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows, from one server."""
    context = multiprocessing.get_context("forkserver")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there, options))
    process.start()
    there.close()
    try:
        port = here.recv()
        rows = [measure(port, options, way) for way in options.ways]
        here.send("end")
        return rows
    finally:
        process.join(20)
        process.terminate()


def report(console: Console, rows: list[dict[str, Any]]) -> None:
    table = Table(title="The reward service, in texts a second")
    for name in ("texts", "tokens of each", "one by one", "in one batch"):
        table.add_column(name, justify="left" if name == "texts" else "right")
    for name in (f"{rows[0]['clients']} clients", "p50, ms", "p99, ms", "batch / one by one"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            f"{row['count']}, {row['texts']}",
            f"{row['tokens']:.0f}",
            f"{row['one_by_one_per_s']:.1f}",
            f"{row['batch_per_s']:.1f}",
            f"{row['clients_per_s']:.1f}",
            f"{row['p50_ms']:.0f}",
            f"{row['p99_ms']:.0f}",
            f"{row['ratio']:.1f}",
        )
    console.print(table)


def main() -> None:
    parser = make_parser(__doc__)
    add_model_options(parser)
    parser.add_argument("--texts", type=int, default=64, help="texts of a batch")
    parser.add_argument("--answers", type=int, default=8, help="answers to each prompt, where prompts are shared")
    parser.add_argument("--rounds", type=int, default=3, help="times that both ways are measured; the median counts")
    parser.add_argument("--clients", type=int, default=32, help="clients at once, each with one connection")
    parser.add_argument("--requests", type=int, default=8, help="requests of each client, one after the other")
    parser.add_argument("--batch-size", type=int, default=64, help="the server's --batch-size")
    parser.add_argument("--batch-wait-ms", type=float, default=5.0, help="the server's --batch-wait-ms")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="which texts")
    options = parser.parse_args()
    deliver(options, run(options), report)


if __name__ == "__main__":
    main()
