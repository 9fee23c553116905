"""Messages, clients and checks that several tests use."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any
from urllib.parse import urlsplit

from openai import AsyncOpenAI

from mini_agentic_rl.adapter import spans_to_records
from mini_agentic_rl.semconv import CompletionSpanAttributes as Key
from mini_agentic_rl.tokens import TokenTree

QUESTION = [{"role": "user", "content": "12+30?"}]

FUNCTION: dict[str, Any] = {
    "name": "calculate",
    "description": "Evaluate arithmetic.",
    "parameters": {
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
        "additionalProperties": False,
    },
}
CALCULATOR: dict[str, Any] = {"type": "function", "function": FUNCTION}

CALL_TEXT = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "12+30"}}\n</tool_call>'
TWO_CALLS = f"Let me see.\n{CALL_TEXT}\n{CALL_TEXT.replace('12+30', '1+1')}"


def call_message(arguments: str = '{"expression": "12+30"}', content: str | None = None) -> dict:
    """An assistant message that calls the calculator."""
    call = {"id": "call_1", "type": "function", "function": {"name": "calculate", "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def result_message(content: str = "42") -> dict:
    """The calculator's answer."""
    return {"role": "tool", "tool_call_id": "call_1", "content": content}


def cut(text: str, sizes: Sequence[int]) -> list[str]:
    """The text in pieces of these sizes, and the rest."""
    ends = [0, *accumulate(sizes)]
    return [*(text[start:end] for start, end in pairwise(ends)), text[ends[-1] :]]


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Return once `condition` is true; fail after so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.005)


def openai_client(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=url, api_key="none", max_retries=0)


async def rollout_url(server, store) -> tuple[str, str]:
    """The id of a running rollout, and the base URL of its agent."""
    rollout = await store.start_rollout({"question": "12+30?"})
    url = server.as_resource().get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
    return rollout.rollout_id, url


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


def ask_and_leave(endpoint: str, body: dict, *, begun: Callable[[], object], seconds: float = 0.3) -> bytes:
    """Send a chat request over a plain socket and hang up a while after `begun` is true; return what has arrived."""
    parts = urlsplit(f"{endpoint}/chat/completions")
    content = json.dumps(body).encode()
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        connection.sendall(
            f"POST {parts.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n".encode()
            + content
        )
        until(begun)
        time.sleep(seconds)
        connection.setblocking(False)
        try:
            return connection.recv(2**20)
        except BlockingIOError:
            return b""
