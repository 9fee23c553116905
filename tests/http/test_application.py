"""An application with an admission in front, as clients over HTTP see it, and gzip within bounds."""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mini_agentic_rl.http import (
    Admission,
    AdmittedEndpoint,
    AdmittingServer,
    BadRequestError,
    RequestLimits,
    RequestMetrics,
    json_object,
    json_response,
    new_app,
    openai_response,
    read_body,
)
from mini_agentic_rl.http.body import MOST_STREAMS, Gunzip, GunzipError, TooLargeError

LIMIT = 1000


class _Server:
    def __init__(self) -> None:
        self.metrics = RequestMetrics("test", "path", (0.1, 1.0), lambda: ())
        admission = Admission(RequestLimits(max_body_bytes=LIMIT), ["key"])

        async def echo(request: Request) -> Response:
            body = json_object(await read_body(request, LIMIT, gzip=True))
            if "bad" in body:
                raise BadRequestError("bad: unwanted", param="bad")
            if "fail" in body:
                raise RuntimeError("a fault")
            return json_response(body)

        endpoint = AdmittedEndpoint("echo", echo, admission, self.metrics, openai_response)
        app = new_app(
            openai_response,
            admission.keys,
            title="a test server",
            about="It says <what> it is told.",
            routes=[Route("/echo", endpoint, methods=["POST"])],
        )
        self.server = AdmittingServer(app, admission, "127.0.0.1", 0, "test server")

    def post(self, content: bytes, **headers: str) -> httpx.Response:
        return httpx.post(f"{self.server.root}/echo", content=content, headers={"x-api-key": "key", **headers})

    def counted(self, outcome: str) -> float:
        return self.metrics.registry.get_sample_value("test_requests_total", {"path": "echo", "outcome": outcome}) or 0


@pytest.fixture(scope="module")
def served() -> Iterator[_Server]:
    server = _Server()
    with server.server:
        yield server


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_a_body_comes_back_however_it_was_sent(served: _Server, encoding: str) -> None:
    body = b'{"n":1}'
    sent = gzip.compress(body) if encoding == "gzip" else body
    assert served.post(sent, **{"content-encoding": encoding}).json() == {"n": 1}


@pytest.mark.parametrize(
    ("content", "encoding", "status", "reason"),
    [
        (b"x" * (LIMIT + 1), "identity", 413, f"exceeds {LIMIT} bytes"),
        (gzip.compress(b" " * (LIMIT + 1), mtime=0), "gzip", 413, f"exceeds {LIMIT} bytes"),
        (gzip.compress(b"{}", mtime=0)[:-4], "gzip", 400, "ends before its gzip stream"),
        (b"{}", "gzip", 400, "not gzip"),
        (b"{}", "br", 415, "Content-Encoding 'br'"),
        (b"[]", "identity", 400, "expected a JSON object"),
        (b'{"bad":1}', "identity", 400, "unwanted"),
        (b'{"fail":1}', "identity", 500, "its log says why"),
    ],
)
def test_every_failure_is_an_error_object_with_its_status(
    served: _Server, content: bytes, encoding: str, status: int, reason: str
) -> None:
    answer = served.post(content, **{"content-encoding": encoding})
    assert answer.status_code == status
    assert reason in answer.json()["error"]["message"]


def test_paths_that_are_not_served(served: _Server) -> None:
    unknown = httpx.get(f"{served.server.root}/nothing")
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "invalid_request_error")
    assert httpx.get(f"{served.server.root}/echo").headers["allow"] == "POST"


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_browser_is_shown_what_is_served_without_a_key(served: _Server, path: str) -> None:
    answer = httpx.get(f"{served.server.root}{path}")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    for expected in ("a test server", "It says <what> it is told.", "POST /echo"):
        assert expected in answer.text


def test_requests_are_counted_by_their_outcome(served: _Server) -> None:
    before = [served.counted(outcome) for outcome in ("ok", "refused")]
    served.post(b"{}")
    served.post(b"{}", **{"x-api-key": "wrong"})
    wanted = [before[0] + 1, before[1] + 1]
    end = time.monotonic() + 5  # a request is counted just after its last byte was sent
    while [served.counted(outcome) for outcome in ("ok", "refused")] != wanted:
        assert time.monotonic() < end
        time.sleep(0.01)


@given(texts=st.lists(st.binary(max_size=300), max_size=5), cut=st.integers(1, 50), repeat=st.sampled_from([1, 5000]))
def test_streams_that_come_in_parts_are_the_whole_text(texts: list[bytes], cut: int, repeat: int) -> None:
    texts = [text * repeat for text in texts]
    packed = b"".join(gzip.compress(text, mtime=0) for text in texts)
    stream = Gunzip(limit=10**7)
    parts = [piece for at in range(0, len(packed), cut) for piece in stream.feed(packed[at : at + cut])]
    stream.end()
    assert b"".join(parts) == b"".join(texts) == gunzip(packed, 10**7)


def gunzip(data: bytes, limit: int) -> bytes:
    stream = Gunzip(limit)
    whole = b"".join(stream.feed(data))
    stream.end()
    return whole


def test_the_bound_is_exact() -> None:
    packed = gzip.compress(b"x" * 1_000_000)
    assert len(gunzip(packed, 1_000_000)) == 1_000_000
    with pytest.raises(TooLargeError, match="more than 999999 bytes"):
        gunzip(packed, 999_999)


def test_streams_one_after_the_other_are_counted() -> None:
    empty = gzip.compress(b"", mtime=0)
    assert gunzip(empty * MOST_STREAMS, 10) == b""
    with pytest.raises(GunzipError, match="more than 1000 gzip streams"):
        gunzip(empty * (MOST_STREAMS + 1), 10)


@pytest.mark.parametrize("end", [1, 9, 12, -1])
def test_what_ends_within_a_stream_is_refused(end: int) -> None:
    with pytest.raises(GunzipError, match="ends before"):
        gunzip(gzip.compress(b"some text")[:end], 100)
