"""Fair shares of the cache and of passes: which waiting sequence is admitted next, which running sequence is preempted,
and which rows a pass leaves out.

`TokenRequest.asker` names whoever asks and the request. Those who ask are compared by what all of their running
sequences hold, and the requests of one of them by what each request holds. Draws depend on seed and position alone, so
no share changes a token.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from ..tokens import Asker
from .step_plan import RunningSequence

_SEVERAL: Final = 2
"""An owner of several sequences loses one if it holds at least this many times what the newcomer would hold. A factor
above 1 keeps two equal owners from preempting each other in turn."""
_ONE: Final = 8
"""The same factor for an owner of one sequence, which has to be computed again from its beginning."""


def blocks_of(sequence: RunningSequence) -> int:
    """Return the number of cache blocks that a running sequence holds."""
    return len(sequence.table.blocks)


def first_in_turn(
    waiting: Iterable[RunningSequence], running: Sequence[RunningSequence], admitted: Mapping[Asker, int]
) -> RunningSequence | None:
    """Return the waiting sequence whose owner holds the fewest blocks; among equals the one whose request has had the
    fewest sequences admitted, then the first."""
    owners, requests = (_held(running, blocks_of, level) for level in (1, 2))

    def standing(sequence: RunningSequence) -> tuple[int, int, int]:
        asker = sequence.request.asker
        return owners[asker[:1]], requests[asker], admitted.get(asker, 0)

    return min(waiting, key=standing, default=None)


def greediest(
    running: Sequence[RunningSequence],
    waiting: Iterable[RunningSequence],
    beside: RunningSequence,
    amount: Callable[[RunningSequence], int],
    more: int,
) -> RunningSequence | None:
    """Return the youngest sequence of whoever holds the most; None if nobody holds much more than `beside` would.

    Args:
        running: those that hold something, the oldest first.
        waiting: those that hold nothing.
        beside: a sequence of them all.
        amount: what a running sequence holds.
        more: what `beside` would hold beside what its owner, or its request, holds now. Without more, it is enough for
            whoever has several sequences to hold more.
    """
    for level in (1, 2):
        held, own = _held(running, amount, level), beside.request.asker[:level]
        most = max(held, key=held.__getitem__, default=own)
        several = sum(one.request.asker[:level] == most for one in (*running, *waiting)) > 1
        least = (_SEVERAL if several else _ONE) * (held[own] + more)
        if most != own and (held[most] >= least or (several and not more and held[most] > held[own])):
            running = [one for one in running if one.request.asker[:level] == most]
            requests = _held(running, amount, 2)
            request = max(requests, key=requests.__getitem__)
            return [one for one in running if one.request.asker == request][-1]
        running = [one for one in running if one.request.asker[:level] == own]
    return None


def rows_in_turn(
    ready: list[RunningSequence],
    running: Sequence[RunningSequence],
    share_of_row: Callable[[int], float | None],
) -> list[RunningSequence]:
    """Return the sequences that a pass computes of those that could decode.

    Whoever has the fewest sequences gets all of them computed, and so many of each other's. More are computed as far as
    the pass does not take more than twice as long for them.

    Args:
        ready: those that could decode, the oldest first.
        running: all that run.
        share_of_row: returns what one row costs of a pass of so many rows; None while it is not known.
    """
    level = 1 if len({one.request.asker[0] for one in running}) > 1 else 2
    rows = _held(running, lambda _: 1, level)
    if len(rows) < 2:
        return ready
    equal = min(rows.values()) * len({one.request.asker[:level] for one in ready})
    share = share_of_row(equal)
    most = math.inf if not share else equal + 1 / share
    if len(ready) <= most:
        return ready
    kept = set(_by_turns(_by_turns(ready, 2), 1)[: int(most)])
    return [one for one in ready if one in kept]


def _held(
    sequences: Iterable[RunningSequence], amount: Callable[[RunningSequence], int], level: int
) -> Counter[object]:
    """Return what each owner (level 1), or each request (level 2), holds."""
    held: Counter[object] = Counter()
    for one in sequences:
        held[one.request.asker[:level]] += amount(one)
    return held


def _by_turns(sequences: Sequence[RunningSequence], level: int) -> list[RunningSequence]:
    """Return the first sequence of each owner or request, then the second of each, and so on."""
    seen: Counter[object] = Counter()
    turn: dict[RunningSequence, int] = {}
    for one in sequences:
        turn[one] = seen[one.request.asker[:level]]
        seen[one.request.asker[:level]] += 1
    return sorted(sequences, key=turn.__getitem__)
