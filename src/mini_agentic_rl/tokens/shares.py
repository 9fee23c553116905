"""Shares of packed trees: parts that can be computed in different places, and that add up to the whole.

A share is a run of packed tokens and the path above the first of them. The path is computed by every share that hangs
from it; a term belongs to the share whose own run holds its token, so each term is in one share.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from .packing import Ints, PackedTrees

_MOST_PLACES: Final = 512
"""Places to cut at that are tried, at most: their number squared is the work."""


@dataclass(frozen=True)
class Share:
    """One part of packed trees."""

    packed: PackedTrees
    """Its tokens, the path first, and its terms."""
    terms_N: Ints
    """Numbers of its terms among those of the whole."""


def divide(packed: PackedTrees, parts: int) -> list[Share | None]:
    """Return `parts` shares with as few tokens as can be in the largest, None for those that are left empty.

    Trees are cut where a branch begins, so that no share computes the path to the middle of one. The same trees give
    the same shares.
    """
    places = _places(packed)
    depth = np.append(packed.positions_T[places[:-1]], 0)  # tokens on the path above each place
    found = [
        share
        for start, stop in _runs(places, depth, parts)
        if (share := _share(packed, int(start), int(stop))) is not None
    ]
    return [*found, *[None] * (parts - len(found))]


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
    """Return at most `parts` runs between places whose largest cost, run and path, is least."""
    size = places.size
    cost = (places[None, :] - places[:, None] + depth[:, None]).astype(np.float64)
    cost[np.tril_indices(size)] = np.inf  # a run ends behind its start
    least = cost[0].copy()
    least[0] = 0.0
    came: list[Ints] = []
    for _ in range(parts - 1):
        largest = np.maximum(least[:, None], cost)
        before = largest.argmin(axis=0)
        found = largest[before, np.arange(size)]
        stays = least <= found  # another run would not help
        came.append(np.where(stays, np.arange(size), before))
        least = np.where(stays, least, found)
    runs: list[tuple[int, int]] = []
    stop = size - 1
    for before in reversed(came):
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
    path: list[int] = []
    at = int(packed.parent_T[start])
    while at >= 0:
        path.append(at)
        at = int(packed.parent_T[at])
    above = len(path)
    kept = np.concatenate([np.array(path[::-1], np.int64), np.arange(start, stop, dtype=np.int64)])
    place = np.full(packed.token_count + 1, -1, np.int64)
    place[kept] = np.arange(kept.size)
    parent_T = packed.parent_T[kept]
    # What a token's descendants end with here: all between the path and the run are left out.
    end_T = above + np.clip(packed.end_T[kept], start, stop) - start
    return Share(
        replace(
            packed,
            tokens_T=packed.tokens_T[kept],
            positions_T=packed.positions_T[kept],
            parent_T=np.where(parent_T >= 0, place[parent_T], -1),
            end_T=end_T,
            tree_starts=tuple(int(one) for one in np.flatnonzero(parent_T < 0)),
            token_S=place[packed.token_S[terms_N]],
            behaviour_logprobs_S=packed.behaviour_logprobs_S[terms_N],
            temperature_S=packed.temperature_S[terms_N],
            trajectory_S=packed.trajectory_S[terms_N],
            call_S=packed.call_S[terms_N],
            version_S=packed.version_S[terms_N],
        ),
        terms_N,
    )
