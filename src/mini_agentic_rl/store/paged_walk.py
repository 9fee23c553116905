"""A walk through the rollouts of a store that offers only pages counted from its beginning or its end.

Where a step ended is remembered, so that the next one finds it again at once; where rollouts came or went since, it is
looked for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Literal, Protocol, TypeAlias
from weakref import WeakKeyDictionary

from ..types import PaginatedResult, Rollout, RolloutStatus

Order: TypeAlias = Literal["asc", "desc"]
_Place: TypeAlias = tuple[str, tuple[str, ...], str]


class PagedStore(Protocol):
    """A store as far as its pages go."""

    async def query_rollouts(
        self,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
        sort_order: Order = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Rollout]:
        """Return one page of rollouts, in the order of creation."""
        ...


_LOOKED_AT: Final = 500
_REMEMBERED: Final = 1000
_PLACES: Final[WeakKeyDictionary[PagedStore, OrderedDict[_Place, int]]] = WeakKeyDictionary()
"""Offsets at which steps ended, by the order, the statuses and the rollout."""


async def walk_by_pages(
    store: PagedStore, beyond: str | None, statuses: Sequence[RolloutStatus] | None, order: Order, limit: int
) -> list[Rollout]:
    """Return what `LightningStore.walk_rollouts` returns.

    Raises:
        ValueError: there is no rollout `beyond`.
    """
    places = _PLACES.setdefault(store, OrderedDict())
    of_statuses = tuple(statuses or ())
    offset = 0
    if beyond is not None:
        offset = 1 + await _place_of(store, beyond, statuses, order, places.get((order, of_statuses, beyond), 0))
    found = list(await store.query_rollouts(status_in=statuses, sort_order=order, limit=limit, offset=offset))
    if found:
        places[order, of_statuses, found[-1].rollout_id] = offset + len(found) - 1
        while len(places) > _REMEMBERED:
            places.popitem(last=False)
    return found


async def _place_of(
    store: PagedStore, rollout_id: str, statuses: Sequence[RolloutStatus] | None, order: Order, guess: int
) -> int:
    start = max(0, guess - _LOOKED_AT // 2)
    guessed = start > 0
    while True:
        found = await store.query_rollouts(status_in=statuses, sort_order=order, limit=_LOOKED_AT, offset=start)
        for place, one in enumerate(found, start):
            if one.rollout_id == rollout_id:
                return place
        start += len(found)
        if guessed:
            start, guessed = 0, False
        elif not len(found) or start >= found.total:
            raise ValueError(f"no rollout {rollout_id}")
