"""Forms of answers that were compiled or refused, by their digests."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from ...http import BadRequestError
from .grammar import Grammar

MAX_MIB: Final = 1024
"""Memory of the grammars that are kept, as they were when they were compiled."""
REFUSED_SECONDS: Final = 300.0
"""Seconds for which a refusal is repeated without another try."""
_MAX_REFUSED: Final = 4096


@dataclass(frozen=True)
class _KnownGrammar:
    grammar: Grammar
    mib: float


@dataclass(frozen=True)
class _Refused:
    message: str
    field: str | None
    until: float


class KnownForms:
    """Keeps grammars, those used longest ago the shortest, and for a while why others were refused.

    Args:
        max_grammars: how many are kept.
    """

    def __init__(self, max_grammars: int) -> None:
        self._max_grammars = max_grammars
        self._kept: OrderedDict[bytes, _KnownGrammar] = OrderedDict()
        self._refused: OrderedDict[bytes, _Refused] = OrderedDict()
        self._mib = 0.0

    def find(self, key: bytes) -> Grammar | None:
        """Return the grammar of a form, if it is known.

        Raises:
            BadRequestError: the form was refused a short while ago.
        """
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            return kept.grammar
        refused = self._refused.get(key)
        if refused is not None and time.monotonic() < refused.until:
            raise BadRequestError(refused.message, param=refused.field)
        return None

    def keep(self, key: bytes, grammar: Grammar, mib: float) -> None:
        """Keep a grammar that takes so much memory, and drop others for it where they are too many or too large."""
        self._kept[key] = _KnownGrammar(grammar, mib)
        self._mib += mib
        while len(self._kept) > self._max_grammars or (self._mib > MAX_MIB and len(self._kept) > 1):
            self._mib -= self._kept.popitem(last=False)[1].mib

    def refuse(self, key: bytes, refusal: BadRequestError) -> None:
        """Remember why a form was refused."""
        self._refused.pop(key, None)
        self._refused[key] = _Refused(refusal.message, refusal.param, time.monotonic() + REFUSED_SECONDS)
        if len(self._refused) > _MAX_REFUSED:
            self._refused.popitem(last=False)
