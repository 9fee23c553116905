"""Chunks of packed trees, each of which one forward pass can take.

A chunk is a run of packed tokens. Because trees are laid out depth first, what its tokens look at outside the chunk is
the path from the root down to the chunk: its *context*. No token is computed twice; later chunks only read the keys
and values of the earlier ones on their path.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .packing import Ints, PackedTrees


@dataclass(frozen=True)
class TreeChunk:
    """The packed tokens `start`..`stop`, and what they look at outside."""

    start: int
    stop: int
    context_C: Ints
    """Packed indices, ascending, of the tokens before `start` that the first one looks at; every other token of the
    chunk looks at a leading part of them, or at none."""
    reach: int
    """Index after the last token that looks at any of this chunk's."""


def cut(packed: PackedTrees, max_tokens: int) -> Iterator[TreeChunk]:
    """Yield all of `packed` in order, in chunks of at most `max_tokens` tokens.

    As many whole subtrees as fit go together, evenly: such a chunk is done as soon as it is computed. Of a subtree that
    is too large, the tokens before its first fork make a chunk of their own, because all of the subtree looks at them
    and their backward pass has to wait for it. If these are too few to be worth a pass, the tokens behind them join.
    """
    start, total = 0, packed.token_count
    # A pass has a price of its own: below a quarter of the largest chunk it is not worth paying.
    worthwhile = max(1, max_tokens // 4)
    while start < total:
        limit = min(start + max_tokens, total)
        stop = _whole_subtrees(packed, start, limit, _even_size(packed, start, max_tokens))
        if stop == start:
            stop = _first_fork(packed, start, limit)
            while stop < limit and stop - start < worthwhile:
                onwards = _whole_subtrees(packed, stop, start + worthwhile, worthwhile)
                stop = onwards if onwards > stop else _first_fork(packed, stop, limit)
        yield TreeChunk(start, stop, _path(packed, start), int(packed.end_T[start:stop].max()))
        start = stop


def _whole_subtrees(packed: PackedTrees, start: int, limit: int, enough: int) -> int:
    """Return the end of the subtrees that follow each other from `start` on: of the last one that ends by `limit`, or
    of the one that brings them to `enough` tokens."""
    stop = start
    while stop - start < enough and stop < packed.token_count and packed.end_T[stop] <= limit:
        stop = int(packed.end_T[stop])
    return stop


def _even_size(packed: PackedTrees, start: int, max_tokens: int) -> int:
    """Return the tokens of each chunk if all that is left beside `start` is spread evenly over as few as possible.

    Otherwise a small rest would cost a pass of its own, and the chunks before it would hold more memory than they must.
    """
    parent = int(packed.parent_T[start])
    left = (int(packed.end_T[parent]) if parent >= 0 else packed.token_count) - start
    chunks = -(-left // max_tokens)
    return -(-left // chunks)


def _first_fork(packed: PackedTrees, start: int, limit: int) -> int:
    """Return the end of the tokens from `start` on that all of its subtree looks at, `limit` at the latest."""
    ends = packed.end_T[start:limit]
    others = np.flatnonzero(ends != ends[0])
    return start + int(others[0]) if others.size else limit


def most_alive(packed: PackedTrees, max_tokens: int) -> int:
    """Return the most tokens whose activations exist together when `packed` is learnt in such chunks: those of a chunk,
    and of the earlier ones that wait for it."""
    waiting: list[TreeChunk] = []
    most = 0
    for chunk in cut(packed, max_tokens):
        # The rule of the learner's pass (policy/tree_pass.py).
        while waiting and waiting[-1].reach <= chunk.start:
            waiting.pop()
        most = max(most, sum(c.stop - c.start for c in [*waiting, chunk]))
        if chunk.reach > chunk.stop:
            waiting.append(chunk)
    return most


def _path(packed: PackedTrees, index: int) -> Ints:
    """Return the ancestors of a token, from the root on."""
    size = int(packed.positions_T[index])
    path = np.empty(size, np.int64)
    for place in range(size - 1, -1, -1):
        index = int(packed.parent_T[index])
        path[place] = index
    return path
