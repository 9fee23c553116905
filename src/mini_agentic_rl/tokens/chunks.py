"""Parts of packed trees: chunks that one forward pass can take, and shares that several ranks compute.

A chunk is a run of packed tokens. Trees are laid out depth first, so the tokens of a chunk attend, outside the chunk,
only to the path from the root down to it: its *context*. No token is computed twice; later chunks read the keys and
values of the earlier chunks on their path.

A share is a run of packed tokens and the path above the first of them. Every share below a path computes it again; a
term belongs to the share whose own run holds its token, so each term is in one share, and shares add up to the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from .tree import Ints, PackedTrees


@dataclass(frozen=True)
class TreeChunk:
    """The packed tokens `start`..`stop`, and the tokens outside to which they attend."""

    start: int
    stop: int
    context_C: Ints
    """Packed indices, ascending, of the tokens before `start` to which the first token of the chunk attends; its other
    tokens attend to a leading part of them, or to none."""
    reach: int
    """Index after the last token that attends to a token of this chunk."""


def cut(packed: PackedTrees, max_tokens: int) -> Iterator[TreeChunk]:
    """Yield all of `packed` in order, in chunks of at most `max_tokens` tokens.

    A chunk holds as many whole subtrees as fit, spread evenly: its backward pass can follow at once. Of a subtree that
    is too large, the tokens before its first fork are a chunk, because the whole subtree attends to them and their
    backward pass has to wait for it. If these are too few to be worth a pass, the tokens after them are added.
    """
    start, total = 0, packed.token_count
    # Each pass has a fixed cost: a chunk has at least a quarter of the largest size.
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
    """Return the end of consecutive subtrees from `start` on: of the last that ends by `limit`, or of the first with
    which they have `enough` tokens."""
    stop = start
    while stop - start < enough and stop < packed.token_count and packed.end_T[stop] <= limit:
        stop = int(packed.end_T[stop])
    return stop


def _even_size(packed: PackedTrees, start: int, max_tokens: int) -> int:
    """Return the chunk size that spreads the siblings from `start` on evenly over as few chunks as possible.

    Otherwise a small rest would cost a further pass, and the chunks before it would take more memory than needed.
    """
    parent = int(packed.parent_T[start])
    left = (int(packed.end_T[parent]) if parent >= 0 else packed.token_count) - start
    chunks = -(-left // max_tokens)
    return -(-left // chunks)


def _first_fork(packed: PackedTrees, start: int, limit: int) -> int:
    """Return the end of the tokens from `start` to the first fork of its subtree, at most `limit`."""
    ends = packed.end_T[start:limit]
    others = np.flatnonzero(ends != ends[0])
    return start + int(others[0]) if others.size else limit


def most_alive(packed: PackedTrees, max_tokens: int) -> int:
    """Return the maximum number of tokens whose activations exist at the same time when these chunks are learned: those
    of a chunk, and of the earlier chunks whose backward pass waits for it."""
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


_MOST_PLACES: Final = 512
"""Maximum number of places to cut that are tried; the work grows with its square."""


@dataclass(frozen=True)
class Share:
    """One part of packed trees."""

    packed: PackedTrees
    """Its tokens, the path first, and its terms."""
    terms_N: Ints
    """Indices of its terms in the whole."""


def divide(packed: PackedTrees, parts: int) -> list[Share | None]:
    """Return `parts` shares whose largest has as few tokens as possible; None for empty shares.

    Trees are cut where a branch begins, so that no share computes the path to the middle of a branch. The same trees
    give the same shares.
    """
    places = _places(packed)
    depth = np.append(packed.positions_T[places[:-1]], 0)  # tokens on the path above each place
    shares = [_share(packed, start, stop) for start, stop in _runs(places, depth, parts)]
    with_terms = [share for share in shares if share is not None]
    return [*with_terms, *[None] * (parts - len(with_terms))]


def _places(packed: PackedTrees) -> Ints:
    """Return the indices at which branches begin, and the end."""
    count = packed.token_count
    begins = np.flatnonzero(packed.parent_T != np.arange(count) - 1)
    places = np.unique(np.concatenate([[0], begins]))
    if places.size > _MOST_PLACES:
        wanted = np.linspace(0, count - 1, _MOST_PLACES).astype(np.int64)
        places = np.unique(places[np.searchsorted(places, wanted, side="right") - 1])
    return np.append(places, count)


def _runs(places: Ints, depth: Ints, parts: int) -> list[tuple[int, int]]:
    """Return at most `parts` runs between places that minimise the largest cost: tokens of the run and of its path."""
    size = places.size
    cost = (places[None, :] - places[:, None] + depth[:, None]).astype(np.float64)
    cost[np.tril_indices(size)] = np.inf  # a run ends behind its start
    least = cost[0].copy()
    least[0] = 0.0
    cuts: list[Ints] = []
    for _ in range(parts - 1):
        largest = np.maximum(least[:, None], cost)
        before = largest.argmin(axis=0)
        with_cut = largest[before, np.arange(size)]
        stays = least <= with_cut  # another run would not help
        cuts.append(np.where(stays, np.arange(size), before))
        least = np.where(stays, least, with_cut)
    runs: list[tuple[int, int]] = []
    stop = size - 1
    for before in reversed(cuts):
        start = int(before[stop])
        if start != stop:
            runs.append((int(places[start]), int(places[stop])))
            stop = start
    if stop > 0:
        runs.append((int(places[0]), int(places[stop])))
    return runs[::-1]


def _share(packed: PackedTrees, start: int, stop: int) -> Share | None:
    """Return the share of the tokens `start`..`stop`; None where it has no term."""
    terms_N = np.flatnonzero((packed.token_S >= start) & (packed.token_S < stop))
    if terms_N.size == 0:
        return None
    path = _path(packed, start)
    kept = np.concatenate([path, np.arange(start, stop, dtype=np.int64)])
    place = np.full(packed.token_count + 1, -1, np.int64)
    place[kept] = np.arange(kept.size)
    parent_T = packed.parent_T[kept]
    # Tokens between the path and the run are left out, so descendants end earlier.
    end_T = path.size + np.clip(packed.end_T[kept], start, stop) - start
    return Share(
        replace(
            packed,
            tokens_T=packed.tokens_T[kept],
            positions_T=packed.positions_T[kept],
            parent_T=np.where(parent_T >= 0, place[parent_T], -1),
            end_T=end_T,
            tree_starts=tuple(np.flatnonzero(parent_T < 0).tolist()),
            token_S=place[packed.token_S[terms_N]],
            behaviour_logprobs_S=packed.behaviour_logprobs_S[terms_N],
            temperature_S=packed.temperature_S[terms_N],
            trajectory_S=packed.trajectory_S[terms_N],
            call_S=packed.call_S[terms_N],
            version_S=packed.version_S[terms_N],
        ),
        terms_N,
    )
