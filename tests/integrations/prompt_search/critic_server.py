"""A real OpenAI-compatible critic on a real socket, and an agent whose reward depends on its prompt alone.

Run as a script it is an optimisation that is killed: `critic_server.py FOLDER ROUND`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from openai import AsyncOpenAI

from mini_agentic_rl import APO, InMemoryLightningStore, PromptTemplate, Trainer, prompt_rollout
from mini_agentic_rl.metrics import MetricsLogger
from rewards.servers import serving

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

    def reply(path: str, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, Any]:
        asked.append(body)
        return answer(body)

    with serving(reply) as url:
        yield AsyncOpenAI(api_key="key", base_url=f"{url}/v1", **{"max_retries": 0, **options}), asked


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
