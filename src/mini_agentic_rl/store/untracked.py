"""The rows that a store keeps for good, out of the sight of Python's collector of garbage.

A full collection looks at every object that can refer to others, and nobody else has a turn meanwhile: a second for
200,000 spans, or 100,000 rollouts, in memory, again and again while they come. Nothing in them refers back to them, so
their objects end when nobody refers to them, and the collector finds nothing there. `gc.freeze` would hide everything
else of the process too, the cycles of the caller among them.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Any, Final

from pydantic import BaseModel

_MOST_ITEMS: Final = 100
"""Longer lists hold numbers as a rule: they are hidden, and nobody looks for what is in them."""
_CPYTHON: Final = sys.implementation.name == "cpython"
"""True where the collector is that of CPython, whose C interface this is."""


def hide_alone(*values: Any) -> None:
    """Hide these objects, and not what they refer to. A dictionary is seen again when something enters it."""
    if _CPYTHON:
        for one in values:
            ctypes.pythonapi.PyObject_GC_UnTrack(ctypes.py_object(one))


def hide_from_collector(value: Any) -> None:
    """Hide a tree of models, dictionaries and lists. What refers back to it later, in a circle, is never collected."""
    if not _CPYTHON:
        return
    untrack = ctypes.pythonapi.PyObject_GC_UnTrack
    rest = [value]
    while rest:
        one = rest.pop()
        if not gc.is_tracked(one):
            continue
        if isinstance(one, BaseModel):
            rest += (vars(one), one.__pydantic_fields_set__, one.__pydantic_extra__)
        elif isinstance(one, dict):
            rest += one.values()
        elif isinstance(one, list | tuple):
            rest += one if len(one) <= _MOST_ITEMS else ()
        elif not isinstance(one, set):
            continue
        untrack(ctypes.py_object(one))
