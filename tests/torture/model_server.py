"""A chat server on a tiny model, in a process of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from .neighbours import Served, served

_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from gateway.tiny_server import tiny_server
from mini_agentic_rl.gateway import GatewayLimits

with tiny_server(context_length=512, limits=GatewayLimits(max_grammar_seconds=0.5)) as tiny:
    print(tiny.server.endpoint + "/chat/completions", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def served_model() -> Iterator[Served]:
    """Run the server; its URL is that of chat completions."""
    with served(_PROGRAM, str(Path(__file__).parents[1])) as server:
        yield server


def question(text: str = "Hi?", **fields: object) -> dict[str, object]:
    """Return the body of a request."""
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 1, **fields}
