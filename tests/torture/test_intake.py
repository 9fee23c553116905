"""Spans that hostile exporters send to the store: bombs, floods of small things, and bytes that are no message."""

from __future__ import annotations

import gzip
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import httpx

from mini_agentic_rl.store.http.otlp import MOST_FIELDS_OF_SPAN, MOST_RECORDS

from .conftest import Attack
from .neighbours import Neighbour, served
from .servers import STORE

GZIP = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
MOST_BODY = 32 * 1024 * 1024


def varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoded, number])


def field(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def attribute(key: bytes, value: bytes) -> bytes:
    return field(9, field(1, key) + field(2, value))


def export(*spans: bytes, resource: bytes = b"") -> bytes:
    return field(1, field(1, resource) + field(2, b"".join(field(2, span) for span in spans)))


class Ids:
    """A new attempt of a store, which good spans name."""

    def __init__(self, url: str) -> None:
        self.attempt = httpx.post(f"{url}/v1/agl/rollouts", json={"input": "task"}).json()["attempt"]
        pairs = [
            field(1, b"agentlightning." + name.encode()) + field(2, field(1, self.attempt[name].encode()))
            for name in ("rollout_id", "attempt_id")
        ]
        self.on_resource = b"".join(field(1, pair) for pair in pairs)
        self.on_span = b"".join(field(9, pair) for pair in pairs)

    def span(self, number: int, more: bytes = b"") -> bytes:
        return field(1, b"\1" * 16) + field(2, struct.pack(">Q", number + 1)) + field(5, b"call") + more


def packed(body: bytes, level: int = 6) -> bytes:
    return gzip.compress(body, level, mtime=0)


def bomb(unit: bytes, count: int) -> bytes:
    """Compress `unit`, repeated, without ever holding the whole."""
    stream, block = zlib.compressobj(9, wbits=31), unit * 65_536
    parts = [stream.compress(block) for _ in range(count // 65_536)]
    return b"".join([*parts, stream.compress(unit * (count % 65_536)), stream.flush()])


def nested_values(depth: int) -> bytes:
    """An AnyValue of arrays in arrays, built inside out with lengths that grow."""
    parts: list[bytes] = []
    size = 0
    for _ in range(depth):
        for number in (1, 5):
            head = varint(number << 3 | 2) + varint(size)
            parts.append(head)
            size += len(head)
    return b"".join(reversed(parts))


Shape = tuple[str, Callable[[], bytes], set[int]]
MILLIONS = 30_000_000


def repeated(unit: bytes, count: int = MILLIONS) -> Callable[[], bytes]:
    return lambda: bomb(unit, count)


def within(unit: bytes, wrap: Callable[[bytes], bytes]) -> Callable[[], bytes]:
    return lambda: packed(wrap(unit * MILLIONS), 1)


def sent(message: Callable[[], bytes]) -> Callable[[], bytes]:
    return lambda: packed(message(), 1)


def many(ids: Ids, count: int, more: bytes = b"") -> Callable[[], bytes]:
    return sent(lambda: export(*[ids.span(n, more) for n in range(count)], resource=ids.on_resource))


def bombs() -> list[Shape]:
    """Give what is small when it is sent, each with the statuses that are right."""
    return [
        ("30 million empty spans", repeated(b"\x12\x00"), {400, 413}),
        ("30 million empty spans within", within(b"\x12\x00", lambda all_: field(1, field(2, all_))), {413}),
        ("30 million empty resources", repeated(b"\x0a\x00"), {413}),
        ("30 million empty attributes", within(b"\x4a\x00", export), {413}),
        ("30 million empty events", within(b"\x5a\x00", export), {413}),
        ("30 million empty links", within(b"\x6a\x00", export), {413}),
        ("30 million resource attributes", within(b"\x0a\x00", lambda all_: export(resource=all_)), {413}),
        ("30 million unknown fields", repeated(b"\x18\x00"), {413}),
        ("30 million scopes", within(b"\x12\x00", lambda all_: field(1, all_)), {413}),
        ("30 million values", within(b"\x0a\x00", lambda all_: export(attribute(b"a", field(5, all_)))), {413}),
        ("one gibibyte of zeros", repeated(b"\0", 2**30), {413}),
        ("four gibibytes of one letter", repeated(b"a", 2**32), {413}),
        ("as much as is taken", repeated(b"\0", MOST_BODY), {400}),
        ("a bomb within a bomb", lambda: packed(bomb(b"\0", 2**30)), {400}),
        ("100,000 empty streams", lambda: packed(b"") * 100_000, {400}),
        ("1.5 million empty streams", lambda: packed(b"") * 1_500_000, {400}),
    ]


def messages(ids: Ids) -> list[Shape]:
    """Give messages that are right, too large, or broken."""
    huge = 60 * 2**20
    stranger = attribute(b"agentlightning.rollout_id", field(1, b"r" * huge))
    stranger += attribute(b"agentlightning.attempt_id", field(1, b"a"))
    heavy = ids.on_resource + field(1, field(1, b"k") + field(2, field(1, b"v" * (30 * 2**20))))
    broken = field(1, field(1, b"\xff" * 2**20))
    ints = field(5, b"\x0a\x02\x18\x05" * (MOST_FIELDS_OF_SPAN // 2 - 20_000))
    eight = b"".join(attribute(b"k%d" % number, field(1, b"value")) for number in range(8))
    late = field(1, field(2, field(2, ids.span(4))) + field(1, ids.on_resource) + field(3, b"schema"))
    crowd = [ids.span(number) for number in range(50_000)]
    return [
        ("values 30 levels deep", sent(lambda: export(attribute(b"a", nested_values(15)))), {200}),
        ("values 40,000 levels deep", sent(lambda: export(attribute(b"a", nested_values(20_000)))), {400}),
        ("a length beyond the end", sent(lambda: b"\x0a\x7f"), {400}),
        ("a length of 2**63", sent(lambda: b"\x0a" + varint(2**63)), {400}),
        ("a number of 20 bytes", sent(lambda: b"\x18" + b"\xff" * 20), {400}),
        ("groups", sent(lambda: b"\x1b" * 1000 + b"\x1c" * 1000), {400}),
        ("wire type 7", sent(lambda: b"\x0f\x00"), {400}),
        ("field number 0", sent(lambda: b"\x02\x00"), {400}),
        ("a name that is no UTF-8", sent(lambda: export(field(5, b"\xff"))), {200}),
        ("a name of 60 MiB", sent(lambda: export(field(5, b"n" * huge))), {200}),
        (
            "a trace state of 28 MiB",
            sent(lambda: export(ids.span(2, ids.on_span + field(3, b"a=b," * 7 * 2**20)))),
            {200},
        ),
        ("a trace id of 60 MiB", sent(lambda: export(field(1, b"\1" * huge) + ids.on_span)), {200}),
        ("a rollout's name of 60 MiB", sent(lambda: export(ids.span(3, stranger))), {200}),
        ("50,000 spans of a resource of 30 MiB", sent(lambda: export(*crowd, resource=heavy)), {413}),
        ("50,000 spans of a broken resource", sent(lambda: export(*crowd, resource=broken)), {413}),
        ("a resource after its spans", sent(lambda: late), {200}),
        (f"{MOST_RECORDS:,} good spans", many(ids, MOST_RECORDS), {200}),
        (f"{MOST_RECORDS + 1:,} spans", many(ids, MOST_RECORDS + 1), {413}),
        ("60,000 good spans with 8 attributes", many(ids, 60_000, eight), {200}),
        ("a span as large as may be", sent(lambda: export(ids.span(9, ids.on_span + attribute(b"ids", ints)))), {200}),
    ]


def test_compression_shapes_of_otlp(attack: Attack) -> None:
    with served(STORE) as server:
        shapes = [*bombs(), *messages(Ids(server.url))]
        with Neighbour(f"{server.url}/v1/agl/health") as neighbour, httpx.Client(timeout=300) as http:
            for name, made, statuses in random.Random(4).sample(shapes, min(len(shapes), attack.times(len(shapes)))):
                body = made()
                with attack.attempt(name, limit_s=100, neighbour=neighbour), attack.memory_of(server.pid):
                    response = http.post(f"{server.url}/v1/traces", content=body, headers=GZIP)
                    assert response.status_code in statuses, (response.status_code, response.content[:300])
                    assert len(response.content) < 5000


def test_good_spans_of_otlp_into_sqlite(attack: Attack, tmp_path: Path) -> None:
    with served(STORE, str(tmp_path / "store.db")) as server, httpx.Client(timeout=300) as http:
        ids = Ids(server.url)
        with Neighbour(f"{server.url}/v1/agl/rollouts?limit=1") as neighbour:
            for size in (60_000 // n for n in range(1, 1 + attack.times(10))):
                body = many(ids, size)()
                with attack.attempt(size, limit_s=200, neighbour=neighbour), attack.memory_of(server.pid):
                    assert http.post(f"{server.url}/v1/traces", content=body, headers=GZIP).status_code == 200
