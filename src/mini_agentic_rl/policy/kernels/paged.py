"""Attention of sampling in C++ (paged.h): packed rows of a pass over the slots of the block cache."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .compiled import Heads, Kernel, Strided, dense

_CHUNK_ROWS = 64
"""Rows of a prompt that are attended together: each block of them packs its keys anew."""
_RUN_KEYS = 512
"""Most keys of a run that one thread reads at a time: a long one is read by several."""


class PagedArguments(ctypes.Structure):
    """Arguments of the attention of one layer."""

    _fields_ = [
        *((name, Strided) for name in ("q", "k", "v")),
        *((name, ctypes.c_void_p) for name in ("keys", "values")),
        ("slot_width", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("new_slots", "sources")),
        ("new_count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("slots", "lengths")),
        *((name, ctypes.c_float) for name in ("scale", "softcap")),
        ("window", ctypes.c_int64),
        ("heads", Heads),
        *((name, ctypes.c_void_p) for name in ("sums", "tops", "outs")),
    ]


class ReadArguments(ctypes.Structure):
    """Rows and the runs of slots that they read, for all layers."""

    _fields_ = [
        ("items", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("part_first", "parts")),
    ]


_PAGED = Kernel(
    "paged_attention", ctypes.POINTER(PagedArguments), ctypes.POINTER(ReadArguments), ctypes.c_int64, ctypes.c_void_p
)


class PagedReads:
    """The cache slots that each packed row of a sampling pass reads; the same for all layers.

    Rows that read the same slots are read for together, and a row may read several runs of slots: one softmax runs
    over all of them.
    """

    def __init__(self, tokens: int, new_slots: Tensor, sources: Tensor | None = None) -> None:
        """
        Args:
            tokens: number of packed rows.
            new_slots: cache slots that new keys and values are written to.
            sources: row that each of them is taken from; None is their order.
        """
        self._new_slots, self._sources = new_slots, sources
        self._lengths_T = np.zeros(tokens, np.int64)
        self._slots: list[np.ndarray] = []
        self._slot_count = 0
        self._items: list[tuple[int, int, int, int, int, int]] = []
        self._parts = 0
        self._frozen: _Frozen | None = None

    def see(self, row: int, positions: int) -> None:
        """Let a row see the positions below `positions` of what it reads."""
        self._lengths_T[row] = positions

    def read(self, rows: range, slots_P: np.ndarray, position: int) -> None:
        """Let `rows` read `slots_P`, the first of which holds position `position`."""
        first_slot = self._keep(slots_P)
        pieces = max(1, -(-len(slots_P) // _RUN_KEYS))
        bounds = [len(slots_P) * piece // pieces for piece in range(pieces + 1)]
        for start, stop in pairwise(bounds):
            self._add(rows, first_slot + start, stop - start, position + start)

    def read_prompt(self, rows: range, slots_P: np.ndarray) -> None:
        """Let `rows`, the last positions of a prompt, read and see all slots up to their own."""
        self._lengths_T[rows.start : rows.stop] = np.arange(len(slots_P) - len(rows), len(slots_P)) + 1
        first_slot = self._keep(slots_P)
        for start in range(rows.start, rows.stop, _CHUNK_ROWS):
            some = range(start, min(start + _CHUNK_ROWS, rows.stop))
            self._add(some, first_slot, len(slots_P) - (rows.stop - some.stop), 0)

    def frozen(self, heads: int, size: int) -> _Frozen:
        """Return the reads as arrays, with room for the results of each part."""
        if self._frozen is None:
            self._frozen = self._freeze(heads, size)
        return self._frozen

    def _freeze(self, heads: int, size: int) -> _Frozen:
        row_of_part = np.concatenate([np.arange(first, last) for first, last, *_ in self._items])
        counts = np.bincount(row_of_part, minlength=len(self._lengths_T))
        slots_P = np.ascontiguousarray(np.concatenate(self._slots), np.int64)
        sums, tops = torch.empty(self._parts * heads), torch.empty(self._parts * heads)
        outs = torch.empty(self._parts * heads * size)
        arguments = PagedArguments(
            new_slots=self._new_slots.data_ptr(),
            sources=None if self._sources is None else self._sources.data_ptr(),
            new_count=self._new_slots.numel(),
            slots=slots_P.ctypes.data,
            lengths=self._lengths_T.ctypes.data,
            sums=sums.data_ptr(),
            tops=tops.data_ptr(),
            outs=outs.data_ptr(),
        )
        items = np.array(self._items, np.int64)
        part_first = np.concatenate([[0], counts.cumsum()]).astype(np.int64)
        parts = np.argsort(row_of_part, kind="stable").astype(np.int64)
        return _Frozen(
            arguments,
            ReadArguments(items.ctypes.data, len(items), part_first.ctypes.data, parts.ctypes.data),
            kept=(slots_P, sums, tops, outs, items, part_first, parts),
        )

    def _keep(self, slots_P: np.ndarray) -> int:
        first = self._slot_count
        self._slots.append(slots_P)
        self._slot_count += len(slots_P)
        return first

    def _add(self, rows: range, first_slot: int, keys: int, position: int) -> None:
        self._items.append((rows.start, rows.stop, first_slot, keys, position, self._parts))
        self._parts += len(rows)


@dataclass(frozen=True)
class _Frozen:
    arguments: PagedArguments
    """Arguments that are the same for all layers; the others are filled in at each."""
    reads: ReadArguments
    """Places in the cache, and their readers; for each row, and behind the last one, where its parts begin."""
    kept: tuple[Any, ...]
    """Memory that these have the addresses of, beside that which `PagedReads` itself keeps."""

    def of_layer(
        self,
        cache_CW: tuple[Tensor, Tensor],
        heads: Heads,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> PagedArguments:
        """Return the arguments of one layer, all but its queries, keys and values."""
        arguments, (keys_CW, values_CW) = self.arguments, cache_CW
        arguments.keys, arguments.values = keys_CW.data_ptr(), values_CW.data_ptr()
        arguments.slot_width, arguments.heads = keys_CW.stride(0), heads
        arguments.scale, arguments.softcap, arguments.window = scale, softcap or 0.0, window or 0
        return arguments


def paged_attention(
    q_HTD: Tensor,
    k_HTD: Tensor,
    v_HTD: Tensor,
    cache_CW: tuple[Tensor, Tensor],
    reads: PagedReads,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Store the keys and values of T packed rows in the cache of one layer, and return the rows' attention [T, H, D].

    Args:
        cache_CW: keys and values of the cache, [slots, key heads x D].
        reads: which rows read which slots; every row reads at least its own.
        scale, window, softcap: see `Scoring`.
    """
    heads, tokens, size = q_HTD.shape
    q_HTD, k_HTD, v_HTD = dense(q_HTD), dense(k_HTD), dense(v_HTD)
    arrays = reads.frozen(heads, size)
    out_THD = q_HTD.new_empty(tokens, heads, size)
    arguments = arrays.of_layer(cache_CW, Heads(heads, k_HTD.shape[0], size), scale, window, softcap)
    arguments.q, arguments.k, arguments.v = Strided.of(q_HTD), Strided.of(k_HTD), Strided.of(v_HTD)
    _PAGED(arguments, arrays.reads, tokens, out_THD.data_ptr())
    return out_THD
