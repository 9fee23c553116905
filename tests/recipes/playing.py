"""Models that follow a script: a chat endpoint of a few lines, and the package's server with a scripted sampler."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.scripted import ScriptedSampler
from gateway.small_tokenizer import CHATML_TOOLS, small_tokenizer
from mini_agentic_rl.cli import app
from mini_agentic_rl.emitter import find_reward_spans, get_rewards_from_span
from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.runner import LitAgentRunner
from mini_agentic_rl.store import InMemoryLightningStore
from mini_agentic_rl.tracer import OtelTracer
from mini_agentic_rl.types import ProxyLLM
from rewards.servers import serving


def run(*words: object) -> str:
    """What a command of ours prints on standard output."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


def says(text: str | None) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def calls(name: str, *arguments: str, content: str | None = None) -> dict[str, Any]:
    """A message that calls a tool once with each of these arguments."""
    tool_calls = [
        {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": text}}
        for index, text in enumerate(arguments)
    ]
    return {"role": "assistant", "content": content, "tool_calls": tool_calls}


def call(name: str, **arguments: Any) -> str:
    """A call of a tool as a model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


class ScriptedServer:
    """A chat endpoint that replies with the messages of `script` in turn, then repeats the last."""

    def __init__(self) -> None:
        self.script: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.endpoint = ""

    def answer(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, Any]:
        self.paths.append(path.lstrip("/"))
        self.requests.append(body)
        message = self.script[min(len(self.requests), len(self.script)) - 1]
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return 200, {"id": "r", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}

    def says(self, *texts: str) -> None:
        self.script = list(map(says, texts))

    def llm(self, **sampling: Any) -> ProxyLLM:
        return ProxyLLM(endpoint=self.endpoint, model="m", sampling_parameters=sampling)


@pytest.fixture(name="server")
def scripted_server() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    with serving(server.answer) as url:
        server.endpoint = f"{url}/v1"
        yield server


async def play(agent: Any, task: Any, answers: Any, **options: Any) -> SimpleNamespace:
    """Run one rollout on the package's server: the rollout, its rewards by name, the model's requests, the renderer."""
    tokenizer, store = small_tokenizer(CHATML_TOOLS), InMemoryLightningStore()
    sampler = ScriptedSampler(tokenizer, answers, **options)
    server = MiniLLMServer(sampler, tokenizer, model_name="tiny", store=store).start()
    try:
        runner = LitAgentRunner(OtelTracer())
        with runner.run_context(agent=agent, store=store):
            rollout = await runner.step(task, resources={"llm": server.as_resource({"max_tokens": 800})})
        spans = find_reward_spans(list(await store.query_spans(rollout.rollout_id)))
        rewards = {reward.name: reward.value for span in spans for reward in get_rewards_from_span(span)}
        return SimpleNamespace(rollout=rollout, rewards=rewards, requests=sampler.requests, renderer=server.renderer)
    finally:
        server.stop(timeout=1)


def last_prompt(requests: Any) -> str:
    return small_tokenizer().decode(requests[-1].prompt_ids)


@pytest.fixture(scope="session", name="model")
def roomy_model(tiny_folder, tmp_path_factory) -> str:
    """The folder of a tiny model with room for prompts, whose tokenizer makes a token of every byte."""
    folder = shutil.copytree(tiny_folder, tmp_path_factory.mktemp("models") / "tiny")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    return str(folder)
