"""A real OpenAI-compatible critic on a real socket, and an agent whose reward depends on its prompt alone.

Run as a script it is an optimisation that is killed: `critic_server.py FOLDER ROUND`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from openai import AsyncOpenAI

from mini_agentic_rl import APO, InMemoryLightningStore, PromptTemplate, Trainer, prompt_rollout
from mini_agentic_rl.metrics import MetricsLogger

TASKS = [{"question": f"{number} + 1"} for number in range(6)]
SEED_PROMPT = PromptTemplate(template="Answer {question}.", engine="f-string")
WORDS = ("carefully", "briefly", "politely", "in numbers")
"""Each of these in the prompt earns a quarter."""

Answer = Callable[[dict[str, Any]], tuple[int, Any]]
"""Request body in, (HTTP status, response body) out."""


def completion(text: str | None) -> tuple[int, dict[str, Any]]:
    message = {"role": "assistant", "content": text}
    return 200, {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "critic",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }


def good_critic(body: dict[str, Any]) -> tuple[int, Any]:
    """Depends on the request alone: names a word that is missing, then adds the word that the criticism names."""
    question = body["messages"][-1]["content"]
    template = re.search(r"<template>\n(.*?)\n</template>", question, re.DOTALL)[1]
    if "<criticism>" in question:
        word = re.search(r"<criticism>\nsay: (.*?)\n</criticism>", question, re.DOTALL)[1]
        return completion(f"Here it is.\n<prompt>\n{template} Do it {word}.\n</prompt>")
    missing = [word for word in WORDS if word not in template]
    choice = len(question) % len(missing) if missing else 0
    return completion(f"say: {missing[choice] if missing else 'again'}")


@contextmanager
def critic(answer: Answer, **options: Any) -> Iterator[tuple[AsyncOpenAI, list[dict[str, Any]]]]:
    """(client, the request bodies so far)."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body)
            status, reply = answer(body)
            data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """A client that has given up waiting is no error here."""

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/v1"
        yield AsyncOpenAI(api_key="key", base_url=url, **{"max_retries": 0, **options}), asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@prompt_rollout
async def polite_agent(task: Any, prompt_template: PromptTemplate) -> float:
    text = prompt_template.format(question=task["question"])
    assert task["question"] in text
    return sum(word in text for word in WORDS) / len(WORDS)


def optimise(client: AsyncOpenAI, *, agent: Any = polite_agent, trainer: Any = None, **settings: Any) -> APO:
    """A small search, run to its end."""
    options = {"beam_width": 2, "branch_factor": 2, "beam_rounds": 3, "gradient_batch_size": 2, "val_batch_size": 3}
    algorithm = APO(client, **{**options, **settings})
    given = {"initial_resources": {"prompt": SEED_PROMPT}, "store": InMemoryLightningStore(), **(trainer or {})}
    Trainer(algorithm=algorithm, n_runners=4, **given).fit(agent, TASKS, val_dataset=TASKS)
    return algorithm


def main(folder: str, die_in: str) -> None:
    """A search that ends itself, as a power cut would, while a round is under way."""

    class Fatal(MetricsLogger):
        def phase(self, name: str, total: int | None = None) -> None:
            if name == f"round {die_in}: validation":
                os.kill(os.getpid(), 9)

    with critic(good_critic) as (client, _):
        optimise(client, trainer={"output_dir": folder, "logger": Fatal(), "store": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
