"""A server of others: real HTTP, answers by a script, and what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from mini_agentic_rl.http import Admission, AdmittingServer, RequestLimits

Script = Callable[[dict[str, Any]], Any]
"""From the body of a request to a response, a completion, or a list of chunks."""


def completion(text: str = "42", **choice: Any) -> dict[str, Any]:
    """A whole answer as servers without token ids give it."""
    return {
        "id": "cmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "theirs",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop", **choice}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }


def chunk(text: str | None = None, *, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """One event of a streamed answer."""
    choice = {"index": 0, "delta": {} if text is None else {"content": text}, "finish_reason": finish}
    choice |= more.pop("choice", {})
    return {
        "id": "cmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "theirs",
        "choices": [choice],
    } | more


class FakeUpstream:
    """Serves until it is stopped.

    Args:
        script: what it says.
        delay: seconds before each event of a stream.
    """

    def __init__(self, script: Script | None = None, *, delay: float = 0.0, port: int = 0) -> None:
        self.script: Script = script or (lambda body: completion())
        self.delay = delay
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.broken_off = 0
        """Streams that were not read to their end."""
        route = Route("/v1/chat/completions", self._answer, methods=["POST"])
        self._server = AdmittingServer(
            Starlette(routes=[route]), Admission(RequestLimits()), "127.0.0.1", port, "upstream"
        )
        self._server.start()

    @property
    def url(self) -> str:
        return f"{self._server.root}/v1"

    @property
    def port(self) -> int:
        return self._server.port

    def stop(self) -> None:
        self._server.stop(timeout=1)

    async def _answer(self, request: Request) -> Response:
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        answer = self.script(self.bodies[-1])
        if asyncio.iscoroutine(answer):
            answer = await answer
        if isinstance(answer, Response):
            return answer
        if isinstance(answer, list):
            return StreamingResponse(self._events(answer), media_type="text/event-stream")
        return JSONResponse(answer)

    async def _events(self, chunks: list[Any]) -> Any:
        complete = False
        try:
            for each in chunks:
                await asyncio.sleep(self.delay)
                if isinstance(each, Exception):
                    raise each
                yield f"data: {json.dumps(each)}\n\n"
            yield "data: [DONE]\n\n"
            complete = True
        finally:
            self.broken_off += not complete
