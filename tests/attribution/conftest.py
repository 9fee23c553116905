"""A real gateway on a tiny policy, a store, and a runner that runs several agents at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gateway.tiny_server import tiny_server
from mini_agentic_rl import Hook, InMemoryLightningStore, LitAgent, LitAgentRunner
from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.tracer import DummyTracer
from mini_agentic_rl.types import Span


class Rollouts:
    """Runs rollouts on one store, behind one gateway."""

    def __init__(self, store: InMemoryLightningStore, server: MiniLLMServer) -> None:
        self.store = store
        self.server = server

    async def run(
        self, agent: LitAgent[Any], tasks: Sequence[Any], hooks: Sequence[Hook] = ()
    ) -> dict[Any, list[Span]]:
        """Run all tasks at once; return the spans of LLM calls by task."""
        resources = await self.store.add_resources({"llm": self.server.as_resource({"max_tokens": 4})})
        ids = [
            (task, (await self.store.enqueue_rollout(task, resources_id=resources.resources_id)).rollout_id)
            for task in tasks
        ]

        async def runner(number: int) -> None:
            one = LitAgentRunner(DummyTracer(), max_rollouts=1)
            with one.run_context(agent=agent, store=self.store, hooks=hooks, worker_id=number):
                await one.iter()

        await asyncio.gather(*map(runner, range(len(tasks))))
        found = {}
        for task, rollout_id in ids:
            ended = await self.store.get_rollout_by_id(rollout_id)
            spans = list(await self.store.query_spans(rollout_id, "latest"))
            assert ended.status == "succeeded", [s.attributes for s in spans]
            found[task] = [span for span in spans if span.name == "openai.chat.completion"]
        return found


def asked(spans: Sequence[Span]) -> list[str]:
    """The last message of each call."""
    return [json.loads(span.attributes["gen_ai.input.messages"])[-1]["content"] for span in spans]


@pytest.fixture(scope="module")
def rollouts():
    store = InMemoryLightningStore()
    with tiny_server(store=store) as tiny:
        yield Rollouts(store, tiny.server)


@pytest.fixture
def questions() -> Callable[[Sequence[Span]], list[str]]:
    return asked
