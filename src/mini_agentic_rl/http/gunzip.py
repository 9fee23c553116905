"""Gzip that others sent, decompressed within bounds: of size, and of streams that stand one after the other.

A thousandth of its size in gzip makes a text, and an empty stream of 20 bytes costs as much as a small file. So both
are counted while it is decompressed, and no more than one piece is ever held beyond what the caller keeps.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

MOST_STREAMS: Final = 1000
"""Most gzip streams in one body. A program that appends to a file makes one for each time."""

_GZIP: Final = 16 + zlib.MAX_WBITS
_INPUT: Final = 16 * 1024
"""Bytes that are given at once: what is left over of them is copied, for each stream and each piece."""
_PIECE: Final = 64 * 1024


class GunzipError(ValueError):
    """Report that the bytes are not gzip, or end too early; the text says which."""


class TooLargeError(ValueError):
    """Report more bytes than the bound."""


class Gunzip:
    """Decompress gzip as it comes.

    Args:
        limit: most bytes of the decompressed whole.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._streams = 0
        self._stream = zlib.decompressobj(wbits=_GZIP)
        self._fresh = True

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Give what the next bytes decompress to, in pieces of at most 64 KiB.

        Raises:
            TooLargeError: all together exceeds the limit.
            GunzipError: it is not gzip, or holds more than `MOST_STREAMS` streams.
        """
        for start in range(0, len(data), _INPUT):
            rest, more = data[start : start + _INPUT], False
            while rest or more:
                piece, rest = self._decompressed(rest)
                more = len(piece) == _PIECE and not self._stream.eof
                if piece:
                    yield piece

    def end(self) -> None:
        """Check that nothing is missing.

        Raises:
            GunzipError: the bytes ended within a stream.
        """
        if not self._fresh and not self._stream.eof:
            raise GunzipError("it ends before its gzip stream does")

    def _decompressed(self, data: bytes) -> tuple[bytes, bytes]:
        """Return a piece and what of the input is left."""
        if self._stream.eof:
            self._stream, self._fresh = zlib.decompressobj(wbits=_GZIP), True
        if self._fresh:
            self._streams, self._fresh = self._streams + 1, False
            if self._streams > MOST_STREAMS:
                raise GunzipError(f"it holds more than {MOST_STREAMS} gzip streams, one after the other")
        try:
            piece = self._stream.decompress(data, _PIECE)
        except zlib.error as error:
            raise GunzipError(f"it is not gzip: {error}") from None
        self._size += len(piece)
        if self._size > self._limit:
            raise TooLargeError(f"it decompresses to more than {self._limit} bytes")
        return piece, self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail


def gunzip(data: bytes, limit: int) -> bytes:
    """Return decompressed bytes.

    Raises:
        TooLargeError: they are more than `limit`.
        GunzipError: they are not gzip, end too early, or hold more than `MOST_STREAMS` streams.
    """
    stream = Gunzip(limit)
    whole = b"".join(stream.feed(data))
    stream.end()
    return whole
