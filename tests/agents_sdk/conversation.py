"""One rollout of a real agent against the real server, whose model says what a test wrote down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import httpx
import numpy as np

from gateway.scripted import ScriptedSampler
from gateway.small_tokenizer import CHATML_TOOLS, small_tokenizer
from mini_agentic_rl import InMemoryLightningStore, LitAgent, LitAgentRunner, MiniLLMServer
from mini_agentic_rl.adapter import TraceToTokenTree, spans_to_records
from mini_agentic_rl.emitter import find_final_reward
from mini_agentic_rl.tokens import CompletionRecord, pack
from mini_agentic_rl.types import Rollout, Span

CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "123 * 377"}}\n</tool_call>'
CALL_WITH_WORDS = f"Let me see.\n{CALL}"
RESULT = "46371"
"""What the calculator says to it; the question and the answers never hold it."""
ANSWER = "Answer: 46371.0"
TASK = {"question": "How much is 123 times 377?", "answer": 46371}


@dataclass(frozen=True)
class Conversation:
    """What a rollout left behind."""

    rollout: Rollout
    spans: Sequence[Span]
    records: Sequence[CompletionRecord]
    requests: dict[str, int]
    """The server's count of requests by how they ended."""
    tokenizer: Any

    @property
    def reward(self) -> float | None:
        return find_final_reward(self.spans)

    def added(self) -> list[str]:
        """What each call's prompt has beyond the tokens of the call before it, which it has to begin with."""
        texts = []
        for earlier, later in pairwise(self.records):
            whole = np.concatenate([earlier.prompt_ids, earlier.output_ids])
            np.testing.assert_array_equal(later.prompt_ids[: whole.size], whole)
            texts.append(self.tokenizer.decode(later.prompt_ids[whole.size :]))
        return texts

    def said(self) -> list[str]:
        """What was sampled in each call."""
        return [self.tokenizer.decode(record.output_ids) for record in self.records]

    def trained(self) -> str:
        """The tokens of the rollout's tree that are trained, as text."""
        packed = pack([TraceToTokenTree().adapt(self.spans)])
        return self.tokenizer.decode(packed.tokens_T[packed.token_S].tolist())


async def converse(agent: LitAgent, says: Sequence[str], task: dict[str, Any] = TASK) -> Conversation:
    """Run `agent` once, against a model that says one text after the other; nothing may go wrong on the way."""
    tokenizer = small_tokenizer(CHATML_TOOLS)
    store = InMemoryLightningStore()
    sampler = ScriptedSampler(tokenizer, says, context_length=65536)
    runner = LitAgentRunner()
    with MiniLLMServer(sampler, tokenizer, model_name="tiny", store=store, api_key="secret") as server:
        resources = {"llm": server.as_resource({"temperature": 0.7, "max_tokens": 200})}
        with runner.run_context(agent=agent, store=store):
            rollout = await runner.step(task, resources=resources, mode="train")
        health = httpx.get(server.endpoint.removesuffix("/v1") + "/health").json()
    spans = await store.query_spans(rollout.rollout_id, "latest")
    assert rollout.status == "succeeded", [span.attributes for span in spans if "exception" in span.name]
    records = spans_to_records(spans)
    requests = health["requests"]
    assert (requests["failed"], requests["cancelled"], requests["active"]) == (0, 0, 0)
    assert requests["completed"] == requests["requests"] == len(records)
    return Conversation(rollout, spans, records, requests, tokenizer)


async def check_tool_loop(agent: LitAgent, call: str = CALL_WITH_WORDS) -> Conversation:
    """A call, its result, the answer: two turns of one conversation, whose sampled tokens alone are trained.

    The agent returns 1 for the right answer. A wrong one earns 0.
    """
    conversation = await converse(agent, [call, ANSWER])
    assert [text.removesuffix("<|im_end|>") for text in conversation.said()] == [call, ANSWER]
    (added,) = conversation.added()
    assert RESULT in added
    assert conversation.trained() == "".join(conversation.said())
    assert [record.temperature for record in conversation.records] == [0.7, 0.7]
    assert conversation.reward == 1.0
    wrong = await converse(agent, ["Answer: 7"])
    assert len(wrong.records) == 1
    assert wrong.reward == 0.0
    return conversation
