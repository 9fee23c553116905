"""Gzip from others: any cut of it, many streams, more than the bound."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_agentic_rl.http.body import MOST_STREAMS, Gunzip, GunzipError, TooLargeError, gunzip


@given(texts=st.lists(st.binary(max_size=300), max_size=5), cut=st.integers(1, 50), repeat=st.sampled_from([1, 5000]))
def test_streams_that_come_in_parts_are_the_whole_text(texts: list[bytes], cut: int, repeat: int) -> None:
    texts = [text * repeat for text in texts]
    packed = b"".join(gzip.compress(text, mtime=0) for text in texts)
    stream = Gunzip(limit=10**7)
    parts = [piece for at in range(0, len(packed), cut) for piece in stream.feed(packed[at : at + cut])]
    stream.end()
    assert b"".join(parts) == b"".join(texts) == gunzip(packed, 10**7)


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
