"""Attention of sequences that decode one token each: the keys that all of them begin with are read once.

Sequences that began with the same tokens hold the same cache blocks for them (a system prompt, a task that is sampled
several times). Their queries are scored against those shared keys in one matrix product, and against the rest of each
history apart; one softmax runs over both. Only the rest has to be gathered for every sequence.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import Scoring
from .kv_cache import KVPool


class DecodeTables:
    """Where the histories of B decoding sequences lie in the cache."""

    def __init__(self, shared_P: Tensor, own_BC: Tensor, lengths_B: Tensor) -> None:
        """
        Args:
            shared_P: [P] cache slots of the tokens that all sequences begin with; P may be 0.
            own_BC: [B, C] cache slots of each sequence's tokens after those; past its end any slot stands.
            lengths_B: [B] tokens in each history, the shared ones and the new one included.
        """
        self._shared_P = shared_P
        self._own_BC = own_BC
        self._lengths_B = lengths_B
        self._masks: dict[int | None, Tensor] = {}

    @property
    def batch(self) -> int:
        """B, the number of sequences."""
        return self._own_BC.shape[0]

    def attend(self, pool: KVPool, layer: int, q_BHGD: Tensor, scoring: Scoring) -> Tensor:
        """[B, H, G, D]: H key heads, each with the G query heads that share it."""
        keys_BCHD, values_BCHD = pool.read(layer, self._own_BC)
        mask_B11N = self._mask(scoring.window)
        shared = self._shared_P.numel()
        if not shared and scoring.softcap is None:
            return F.scaled_dot_product_attention(
                q_BHGD,
                keys_BCHD.transpose(1, 2),
                values_BCHD.transpose(1, 2),
                attn_mask=mask_B11N,
                scale=scoring.scale,
            )
        batch, heads, groups, size = q_BHGD.shape
        keys_PHD, values_PHD = pool.read(layer, self._shared_P)
        scores_BHGN = q_BHGD.new_empty((batch, heads, groups, shared + self._own_BC.shape[1]))
        # Head by head, because the batched product of a slice needs no copy of the keys.
        for head in range(heads):
            q_BGD = q_BHGD[:, head]
            of_shared = q_BGD.reshape(batch * groups, size) @ keys_PHD[:, head].T
            scores_BHGN[:, head, :, :shared] = of_shared.view(batch, groups, shared)
            scores_BHGN[:, head, :, shared:] = torch.bmm(q_BGD, keys_BCHD[:, :, head].transpose(1, 2))
        weights_BHGN = _softmax(scores_BHGN, mask_B11N, scoring).to(q_BHGD.dtype)
        out_BHGD = torch.empty_like(q_BHGD)
        for head in range(heads):
            weights_BGN = weights_BHGN[:, head]
            of_shared = weights_BGN[..., :shared].reshape(batch * groups, shared) @ values_PHD[:, head]
            out_BHGD[:, head] = of_shared.view(batch, groups, size)
            out_BHGD[:, head] += torch.bmm(weights_BGN[..., shared:], values_BCHD[:, :, head])
        return out_BHGD

    def _mask(self, window: int | None) -> Tensor:
        """[B, 1, 1, P + C]: which tokens of its history each new token sees."""
        if window not in self._masks:
            width = self._shared_P.numel() + self._own_BC.shape[1]
            position = torch.arange(width, device=self._own_BC.device)[None, :]
            lengths = self._lengths_B[:, None]
            visible = position < lengths
            if window is not None:
                visible = visible & (position >= lengths - window)
            self._masks[window] = visible[:, None, None, :]
        return self._masks[window]


def _softmax(scores_BHGN: Tensor, mask_B11N: Tensor, scoring: Scoring) -> Tensor:
    scores = scores_BHGN.float().mul_(scoring.scale)
    if scoring.softcap is not None:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    return scores.masked_fill_(~mask_B11N, float("-inf")).softmax(-1)
