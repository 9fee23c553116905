"""Attention of the policy, registered with transformers so that any architecture it loads can use it.

A forward call passes `attention_tables=`; the tables know where keys live and who may look at whom. Two kinds exist:
`TreeTables` for learning (a packed tree, no cache) and `PagedTables` for sampling (a block cache). A layer hands over
its fresh queries, keys and values for T packed tokens, batch size 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

ATTENTION_NAME = "mini_agentic_rl"


@dataclass(frozen=True)
class Scoring:
    """How a layer turns dot products into weights."""

    scale: float
    """Factor on the dot products."""
    window: int | None
    """A query sees only keys less than this many positions back; None sees all."""
    softcap: float | None
    """Scores are squashed to this bound by tanh (Gemma 2); None leaves them."""


class AttentionTables(Protocol):
    """One forward call's attention."""

    def attend(self, layer: int, q_HTD: Tensor, k_HTD: Tensor, v_HTD: Tensor, scoring: Scoring) -> Tensor:
        """Returns [T, H, D]. Keys and values have fewer heads than queries under grouped-query attention."""


def _forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    *,
    attention_tables: AttentionTables | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    if attention_tables is None:
        raise RuntimeError("this model's attention runs through the policy's engine and learner; call those instead")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer: int = module.layer_idx  # type: ignore[assignment]  # transformers numbers every attention module
    out_THD = attention_tables.attend(layer, query[0], key[0], value[0], Scoring(scale, sliding_window, softcap))
    return out_THD.unsqueeze(0), None


AttentionInterface.register(ATTENTION_NAME, _forward)


def masked_attention(q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, mask_BHTT: Tensor, scoring: Scoring) -> Tensor:
    """Softmax attention under a boolean mask (True may look). Every query must see at least one key."""
    groups = q_BHTD.shape[1] // k_BHTD.shape[1]
    if scoring.softcap is None:
        if groups > 1:
            k_BHTD, v_BHTD = k_BHTD.repeat_interleave(groups, 1), v_BHTD.repeat_interleave(groups, 1)
        return F.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, attn_mask=mask_BHTT, scale=scoring.scale)
    k_BHTD, v_BHTD = k_BHTD.repeat_interleave(groups, 1), v_BHTD.repeat_interleave(groups, 1)
    scores = q_BHTD @ k_BHTD.transpose(-1, -2) * scoring.scale
    scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    scores = scores.float().masked_fill(~mask_BHTT, float("-inf"))
    return scores.softmax(-1).to(v_BHTD.dtype) @ v_BHTD


class TreeTables:
    """Attention inside packed trees: t sees s when s is t or an ancestor of t."""

    def __init__(self, positions_T: Tensor, end_T: Tensor, slices: Sequence[slice]) -> None:
        self._slices = list(slices)
        self._positions = [positions_T[part] for part in self._slices]
        self._masks = [_ancestor_mask(end_T[part] - part.start) for part in self._slices]
        self._windowed: dict[int, list[Tensor]] = {}

    def attend(self, layer: int, q_HTD: Tensor, k_HTD: Tensor, v_HTD: Tensor, scoring: Scoring) -> Tensor:
        parts = [
            masked_attention(q_HTD[None, :, part], k_HTD[None, :, part], v_HTD[None, :, part], mask, scoring)[0]
            for part, mask in zip(self._slices, self._masks_for(scoring.window), strict=True)
        ]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, 1)).transpose(0, 1)

    def _masks_for(self, window: int | None) -> list[Tensor]:
        if window is None:
            return self._masks
        if window not in self._windowed:
            self._windowed[window] = [
                mask & (position[:, None] - position[None, :] < window)
                for mask, position in zip(self._masks, self._positions, strict=True)
            ]
        return self._windowed[window]


def _ancestor_mask(end_T: Tensor) -> Tensor:
    index_T = torch.arange(end_T.numel(), device=end_T.device)
    return (index_T[None, :] <= index_T[:, None]) & (index_T[:, None] < end_T[None, :])
