"""Arguments of requests to the dashboard, read from the query string and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, get_args

from ...http import BadRequestError
from ...types import RolloutStatus
from .browse import RolloutFilter

_STATUSES: Final = frozenset(get_args(RolloutStatus))
_LONGEST: Final = 500
MAX_PAGE: Final = 200
"""Items of one page at most."""


def rollout_filter(query: Mapping[str, str]) -> RolloutFilter:
    """Return the filter of a query string.

    Raises:
        BadRequestError: one of its fields has no such value.
    """
    status = tuple(one for one in query.get("status", "").split(",") if one)
    for one in status:
        if one not in _STATUSES:
            raise BadRequestError(
                f"status {one[:40]!r}: expected one of {', '.join(sorted(_STATUSES))}", param="status"
            )
    step = query.get("step")
    if step and not (step.isascii() and step.isdigit() and len(step) < 16):
        raise BadRequestError(f"step {step[:40]!r}: expected a whole number", param="step")
    return RolloutFilter(
        status=status,
        step=int(step) if step else None,
        reward_min=_number(query, "reward_min"),
        reward_max=_number(query, "reward_max"),
        **{name: _text(query, name) for name in ("mode", "task", "worker", "text", "group")},
    )


def limit_of(query: Mapping[str, str]) -> int:
    """Return how many items a page is to have.

    Raises:
        BadRequestError: it is no number between 1 and `MAX_PAGE`.
    """
    text = query.get("limit", "100")
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:9]) <= MAX_PAGE:
        raise BadRequestError(f"limit {text[:40]!r}: expected a number between 1 and {MAX_PAGE}", param="limit")
    return int(text)


def _text(query: Mapping[str, str], name: str) -> str:
    text = query.get(name, "")
    if len(text) > _LONGEST:
        raise BadRequestError(f"{name}: longer than {_LONGEST} characters", param=name)
    return text


def _number(query: Mapping[str, str], name: str) -> float | None:
    text = query.get(name)
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise BadRequestError(f"{name} {text[:40]!r}: expected a number", param=name)
    return number
