"""An upstream that sends any bytes, and the answers that no decent server gives."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import socketserver
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

Answer = Callable[[], Iterator[bytes]]
"""The bytes of an answer, from the status line on."""

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"
STREAMED = STREAM + b"\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"


class HostileUpstream:
    """Serve, on a port of its own, the answer whose number is the last message of the request."""

    def __init__(self, answer: Callable[[int], Answer]) -> None:
        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                length = 0
                while line := self.rfile.readline().strip():
                    name, _, value = line.partition(b":")
                    if name.lower() == b"content-length":
                        length = int(value)
                body = json.loads(self.rfile.read(length))
                with contextlib.suppress(OSError):  # the proxy has had enough
                    for part in answer(int(body["messages"][-1]["content"]))():
                        self.wfile.write(part)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True
            request_queue_size = 100

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://user:hunter2@127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> HostileUpstream:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def chunk(**delta: Any) -> dict[str, Any]:
    return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def call(index: Any, **function: Any) -> dict[str, Any]:
    return chunk(tool_calls=[{"index": index, "id": "call", "function": {"name": "f", "arguments": "{}", **function}}])


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def once(*parts: bytes) -> Answer:
    return lambda: iter(parts)


def repeated(head: bytes, part: bytes, times: int, tail: bytes = b"") -> Answer:
    def sent() -> Iterator[bytes]:
        yield head
        block = part * max(1, 65_536 // len(part))
        for _ in range(max(1, times * len(part) // len(block))):
            yield block
        yield tail

    return sent


def bomb(letter: bytes, size: int, head: bytes) -> Answer:
    def sent() -> Iterator[bytes]:
        stream = zlib.compressobj(9, wbits=31)
        yield head
        for _ in range(size // 2**20):
            yield stream.compress(letter * 2**20)
        yield stream.flush()

    return sent


def giants() -> list[tuple[str, bool, Answer]]:
    """Give the answers that take memory or time: what they are, whether they stream, and their bytes."""
    packed = b"Content-Encoding: gzip\r\n\r\n"
    turns = event(chunk(content="x")) + event(chunk(reasoning_content="x"))
    ids = event({"choices": [{"token_ids": list(range(1000)), "delta": {}}]})
    deep = b'{"choices":' + b"[" * 100_000 + b"]" * 100_000 + b"}"

    def fields() -> Iterator[bytes]:
        yield STREAMED
        for number in range(100_000):
            yield event(chunk(**{f"k{number}": [number] * 100}))

    return [
        ("a tool call of index 1,000,000,000", True, once(STREAMED, event(call(1_000_000_000)))),
        ("a choice of index 10**18", True, once(STREAMED, event({"choices": [{"index": 10**18}]}))),
        ("a million tool calls", True, repeated(STREAMED, event(chunk(tool_calls=[{}])), 1_000_000)),
        ("a gzip bomb of 2 GiB", False, bomb(b" ", 2**31, WHOLE + packed)),
        ("a gzip bomb of 2 GiB in a stream", True, bomb(b"\n", 2**31, STREAM + packed)),
        ("a line without an end", True, repeated(STREAMED + b"data: ", b"x", 2**31)),
        ("a whole answer without an end", False, repeated(WHOLE + b"\r\n", b" ", 2**31)),
        ("a refusal without an end", False, repeated(b"HTTP/1.1 400 No\r\n\r\n", b"x", 2**31)),
        ("comments without an end", True, repeated(STREAMED, b": ping\n\n", 2**28)),
        ("text without an end", True, repeated(STREAMED, event(chunk(content="x" * 1000)), 2**22)),
        ("arguments without an end", True, repeated(STREAMED, event(call(0, arguments="x" * 1000)), 2**22)),
        ("small pieces", True, repeated(STREAMED, event(chunk(content="x")), 30_000, b"data: [DONE]\n\n")),
        ("thinking and text in turns", True, repeated(STREAMED, turns, 50_000)),
        ("ten million lists", False, repeated(WHOLE + b'\r\n{"choices": [', b"[],", 10_000_000, b"0]}")),
        ("a list 100,000 deep", False, once(WHOLE, b"\r\n", deep)),
        ("token ids without an end", True, repeated(STREAMED, ids, 1_000_000)),
        ("fields without an end", True, fields),
        ("a number of a million digits", False, once(WHOLE, b'\r\n{"id":', b"9" * 1_000_000, b"}")),
        ("headers without an end", False, repeated(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n", 2**24)),
    ]


_NOISE: list[Any] = [
    None, True, False, 0, -1, 1.5, 10**400, -(2**70), 1e308, "", "x", "\ud800", "\x1b[2J", "x" * 5000, [], {}, [None],
    [[]], {"a": {}}, [1, "2", None], {"index": -5}, "[DONE]", 2**31, ["tool_calls"],
]  # fmt: skip


def _mutated(draw: random.Random, value: Any, depth: int = 0) -> Any:
    if draw.random() < 0.12:
        return draw.choice(_NOISE)
    if isinstance(value, dict):
        kept = {name: _mutated(draw, part, depth + 1) for name, part in value.items() if draw.random() > 0.05}
        return kept | ({draw.choice(["x", "index", "error", "content"]): draw.choice(_NOISE)} if depth == 0 else {})
    if isinstance(value, list):
        return [_mutated(draw, part, depth + 1) for part in value] * draw.choice([1, 1, 1, 0, 2])
    return value


def _good_parts(draw: random.Random) -> list[dict[str, Any]]:
    logprobs = {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [{"token": "b"}]}]}
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}}
    ids = {"prompt_token_ids": [1, 2, 3], "sglext": {"input_ids": [1], "output_ids": [[4, 5]]}}
    parts = [
        chunk(role="assistant", content=""),
        chunk(reasoning_content="so"),
        chunk(content="an answer"),
        call(0),
        call(1, arguments='{"a":'),
        {**chunk(content="b"), **ids},
        {"choices": [{"index": 0, "delta": {"content": "c"}, "token_ids": [7], "logprobs": logprobs}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": "END"}], "usage": usage},
        {"choices": [{"index": 1, "delta": {"content": "second"}}]},
    ]
    return draw.sample(parts, draw.randrange(1, len(parts)))


def _lines(draw: random.Random, events: bytes) -> bytes:
    kind = draw.randrange(6)
    if kind == 0:
        return events.replace(b"\n", b"\r\n")
    if kind == 1:
        return events[: draw.randrange(len(events) + 1)]
    if kind == 2:
        at = draw.randrange(len(events) + 1)
        return events[:at] + draw.randbytes(draw.randrange(40)) + events[at:]
    if kind == 3:
        return events.replace(b"data: ", b"data:").replace(b"\n\n", b"\n")
    if kind == 4:
        return b"event: x\nid: 1\nretry: no\n: comment\ndata\ndata:\n\n" + events
    return events


def _framed(draw: random.Random, body: bytes, head: bytes) -> bytes:
    kind = draw.randrange(8)
    if kind == 0:
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:7], body[7:]) if part)
        end = draw.choice([b"0\r\n\r\n", b"", b"zz\r\n", b"-1\r\n"])
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + end
    if kind == 1:
        return head + b"Content-Length: %d\r\n\r\n" % draw.choice([len(body), len(body) + 9, 3, 0]) + body
    if kind == 2:
        packed = gzip.compress(body)
        return head + b"Content-Encoding: gzip\r\n\r\n" + draw.choice([packed, packed[:-4], packed * 2, body])
    if kind == 3:
        coding = draw.choice([b"br", b"zstd", b"deflate", b"x" * 500, b""])
        return head + b"Content-Encoding: %b\r\n\r\n" % coding + body
    if kind == 4:
        broken = (b"HTTP/9.9 200", b"HTTP/1.1 abc", b"", b"\0" * 99, b"HTTP/1.1 200 OK\r\nBad Header\r\n\r\n")
        return draw.choice(broken) + body
    if kind == 5:
        status = draw.choice([100, 199, 204, 302, 400, 401, 404, 413, 418, 422, 499, 599, 600, 999])
        return b"HTTP/1.1 %d X\r\nLocation: /\r\nConnection: close\r\n\r\n" % status + body
    return head + b"\r\n" + body


def malformed(seed: int) -> tuple[bool, Answer]:
    """Give one answer that is wrong in several ways: whether the request streams, and its bytes."""
    draw = random.Random(seed)
    streams = draw.random() < 0.7
    parts = [_mutated(draw, part) for part in _good_parts(draw)]
    if streams:
        end = draw.choice([b"data: [DONE]\n\n", b"", b"data: {", b"data: []\n\n"])
        body = _lines(draw, b"".join(map(event, parts)) + end)
    else:
        message = {"role": "assistant", "content": "x"}
        choices: list[Any] = [{"index": 0, "message": message, "finish_reason": "stop"}]
        for part in parts:
            listed = part.get("choices") if isinstance(part, dict) else None
            choices += listed if isinstance(listed, list) else []
        body = json.dumps(_mutated(draw, {"id": "c", "choices": choices})).encode()
    return streams, once(_framed(draw, body, STREAM if streams else WHOLE))
