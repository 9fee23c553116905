"""The real suite, a real server, and a script that plays assistant and customer. Nothing leaves this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Sequence

import pytest

from gateway.scripted import ScriptedSampler
from gateway.small_tokenizer import CHATML_TOOLS, small_tokenizer
from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.recipes.tau2 import Tau2Agent
from mini_agentic_rl.runner import LitAgentRunner
from mini_agentic_rl.store import InMemoryLightningStore
from mini_agentic_rl.tokens import TokenRequest
from mini_agentic_rl.tracer import OtelTracer

os.environ.update(HF_HUB_OFFLINE="1")

_HERE = ("127.0.0.1", "localhost", b"127.0.0.1", b"localhost", None)
_reached: list[str] = []


def _watch(event: str, arguments: tuple) -> None:
    if event == "socket.getaddrinfo" and arguments[0] not in _HERE:
        _reached.append(str(arguments[0]))


sys.addaudithook(_watch)


@pytest.fixture(autouse=True)
def _nothing_leaves_this_machine():
    yield
    assert _reached == []


def call(name: str, **arguments) -> str:
    """A tool call as the model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class Stage:
    """A server whose model says the lines of the part that it is asked to play, and the runner that plays on it."""

    def __init__(self, *, context_length: int = 100_000, records: bool = True) -> None:
        tokenizer = small_tokenizer(CHATML_TOOLS)
        self.lines: dict[str | None, Sequence[str]] = {}
        self.said: dict[str | None, int] = {}
        self.store = InMemoryLightningStore()
        self.sampler = ScriptedSampler(tokenizer, self._next, context_length=context_length, tokens_per_delta=64)
        self.sampler.model_names[0] = "tiny-base"
        store = self.store if records else None
        self.server = MiniLLMServer(self.sampler, tokenizer, model_name="tiny", store=store)

    def _next(self, request: TokenRequest) -> str:
        lines = self.lines[request.adapter]
        count = self.said[request.adapter] = self.said.get(request.adapter, 0) + 1
        return lines[min(count, len(lines)) - 1]

    def play(self, task, *, assistant, user, resources=None, **bounds):
        """Run one rollout; returns it and its spans."""
        self.lines = {"default": assistant, None: user}
        self.said.clear()

        async def run():
            runner = LitAgentRunner(OtelTracer())
            llm = self.server.as_resource({"max_tokens": 300})
            with (
                contextlib.suppress(Exception),  # how it ended stands in the store
                runner.run_context(agent=Tau2Agent(**bounds), store=self.store),
            ):
                await runner.step(task, resources={"llm": llm, **(resources or {})})
            rollout = (await self.store.query_rollouts(sort_by="start_time"))[-1]
            return rollout, list(await self.store.query_spans(rollout.rollout_id))

        return asyncio.run(run())

    def prompts(self, adapter: str | None = "default") -> list[TokenRequest]:
        """What was asked of one part."""
        return [request for request in self.sampler.requests if request.adapter == adapter]


@pytest.fixture
def make_stage():
    """Start stages; all are closed at the end."""
    stages = []

    def make(**options) -> Stage:
        stage = Stage(**options)
        stages.append(stage)
        stage.server.start()
        return stage

    yield make
    for stage in stages:
        stage.server.stop(timeout=1)


@pytest.fixture
def stage(make_stage):
    return make_stage()
