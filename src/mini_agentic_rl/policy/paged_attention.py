"""Attention over the block cache: one token a sequence while decoding, a chunk of a prompt while prefilling."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .attention import Scoring, masked_attention
from .decode_attention import DecodeTables
from .kv_cache import KVPool


@dataclass(frozen=True)
class Chunk:
    """A run of new tokens of one sequence: packed indices start..stop, cache slots of everything up to the last."""

    start: int
    stop: int
    slots: Tensor


class PagedTables:
    """Attention of one engine step. Packed order: prefill chunks first, then one token for each decoding sequence."""

    def __init__(
        self,
        pool: KVPool,
        slots: Tensor,
        sources: Tensor | None,
        chunks: list[Chunk],
        decode: DecodeTables | None,
    ) -> None:
        """`slots` is where new keys and values go, `sources` the packed index each is taken from (None: in order)."""
        self._pool = pool
        self._slots = slots
        self._sources = sources
        self._chunks = chunks
        self._decode = decode
        self._masks: dict[int | None, list[Tensor]] = {}

    def attend(self, layer: int, q_HTD: Tensor, k_HTD: Tensor, v_HTD: Tensor, scoring: Scoring) -> Tensor:
        fresh_keys, fresh_values = k_HTD.transpose(0, 1), v_HTD.transpose(0, 1)
        if self._sources is not None:
            fresh_keys, fresh_values = fresh_keys[self._sources], fresh_values[self._sources]
        self._pool.write(layer, self._slots, fresh_keys, fresh_values)
        out_THD = torch.empty_like(q_HTD.transpose(0, 1), memory_format=torch.contiguous_format)
        for chunk, mask in zip(self._chunks, self._masks_for(scoring.window), strict=True):
            keys, values = self._pool.read(layer, chunk.slots)
            new = slice(chunk.start, chunk.stop)
            out_HTD = masked_attention(q_HTD[:, new], keys.transpose(0, 1), values.transpose(0, 1), mask, scoring)
            out_THD[new] = out_HTD.transpose(0, 1)
        if self._decode is not None:
            batch = self._decode.batch
            out_THD[-batch:] = self._decode.attend(self._pool, layer, q_HTD[:, -batch:], scoring).transpose(0, 1)
        return out_THD

    def _masks_for(self, window: int | None) -> list[Tensor]:
        if window not in self._masks:
            self._masks[window] = [
                _causal_mask(chunk.stop - chunk.start, chunk.slots, window) for chunk in self._chunks
            ]
        return self._masks[window]


def _causal_mask(new: int, slots: Tensor, window: int | None) -> Tensor:
    total = slots.numel()
    key = torch.arange(total, device=slots.device)[None, :]
    query = torch.arange(total - new, total, device=slots.device)[:, None]
    visible = key <= query
    return visible if window is None else visible & (query - key < window)
