"""Cutting packed trees into chunks that one forward pass can take.

A chunk is a run of packed tokens. Because trees are laid out depth first, what its tokens look at outside the chunk is
the path from the root down to the chunk: its *context*. No token is computed twice; later chunks only read the keys
and values of the earlier ones on their path.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .pack import Ints, PackedTrees


@dataclass(frozen=True)
class TreeChunk:
    """Packed tokens `start`..`stop`."""

    start: int
    stop: int
    context_C: Ints
    """Packed indices, ascending, of the tokens before `start` that the first one looks at; every other token of the
    chunk looks at a leading part of them, or at none."""
    reach: int
    """Index after the last token that looks at any of this chunk's."""


def cut(packed: PackedTrees, max_tokens: int) -> Iterator[TreeChunk]:
    """All of `packed` in order, in chunks of at most `max_tokens` tokens.

    A chunk ends in the second half of what it may hold, where the next token stands nearest to its root: there the
    fewest tokens have to wait for what follows them.
    """
    start, total = 0, packed.token_count
    while start < total:
        stop = min(start + max_tokens, total)
        if stop < total:
            earliest = start + (max_tokens + 1) // 2
            depths = packed.positions_T[earliest : stop + 1][::-1]
            stop -= int(depths.argmin())
        yield TreeChunk(start, stop, _path(packed, start), int(packed.end_T[start:stop].max()))
        start = stop


def _path(packed: PackedTrees, index: int) -> Ints:
    """The ancestors of a token, from the root on."""
    size = int(packed.positions_T[index])
    path = np.empty(size, np.int64)
    for place in range(size - 1, -1, -1):
        index = int(packed.parent_T[index])
        path[place] = index
    return path
