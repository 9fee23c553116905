"""What the tests of every dialect ask of the recorded calls."""

from __future__ import annotations

from itertools import pairwise

from openai import AsyncOpenAI

from mini_agentic_rl.adapter import spans_to_records
from mini_agentic_rl.semconv import CompletionSpanAttributes as Key
from mini_agentic_rl.tokens import TokenTree


async def rollout_url(server, store) -> tuple[str, str]:
    """The id of a running rollout, and the base URL of its agent."""
    rollout = await store.start_rollout({"question": "12+30?"})
    url = server.as_resource().get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
    return rollout.rollout_id, url


def openai_client(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=url, api_key="none", max_retries=0)


async def records_of(store, rollout_id: str):
    """The recorded calls of a rollout, in order."""
    return spans_to_records(list(await store.query_spans(rollout_id, name=Key.SPAN_NAME)))


def assert_one_branch(records, calls: int) -> None:
    """Each call went on from the recorded tokens of the one before, so that the tree has one branch."""
    assert len(records) == calls
    tree = TokenTree()
    for record in records:
        tree.insert(record)
    for earlier, later in pairwise(records):
        before = [*earlier.prompt_ids, *earlier.output_ids]
        assert list(later.prompt_ids[: len(before)]) == before
        assert len(later.prompt_ids) > len(before)
    assert all(len(node.children) <= 1 for node in tree.nodes)
    assert tree.token_count == len(records[-1].prompt_ids) + len(records[-1].output_ids)
