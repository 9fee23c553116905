"""Attention of the policy, registered with transformers so that any architecture it loads can use it.

A forward call passes `attention_tables=`, which say where keys are stored and which keys a query sees. Two kinds exist:
`TreeTables` for learning (packed trees, no cache) and `PagedTables` for sampling (a block cache). A layer passes
its new queries, keys and values for T packed tokens, batch size 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

ATTENTION_NAME = "mini_agentic_rl"


@dataclass(frozen=True)
class Scoring:
    """The layer's rule for turning dot products into weights."""

    scale: float
    """Factor on the dot products."""
    window: int | None
    """A query sees only keys less than this many positions back; None sees all."""
    softcap: float | None
    """Bound to which tanh squashes the scores (Gemma 2); None leaves them."""


class AttentionTables(Protocol):
    """The attention of one forward call."""

    def attend(self, layer: int, q_HTD: Tensor, k_HTD: Tensor, v_HTD: Tensor, scoring: Scoring) -> Tensor:
        """Return [T, H, D]. Keys and values have fewer heads than queries under grouped-query attention."""


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


def masked_attention(q_HTD: Tensor, k_HKD: Tensor, v_HKD: Tensor, mask_TK: Tensor, scoring: Scoring) -> Tensor:
    """Return softmax attention [H, T, D] under a boolean mask (True is visible). Every query must see at least one key.

    Query heads that share a key head become further rows of queries, so no key is copied for grouped queries.
    """
    heads, tokens, size = q_HTD.shape
    groups = heads // k_HKD.shape[0]
    q_1HRD = q_HTD.reshape(1, heads // groups, groups * tokens, size)
    mask_RK = mask_TK.repeat(groups, 1)
    if scoring.softcap is None:
        out = F.scaled_dot_product_attention(q_1HRD, k_HKD[None], v_HKD[None], attn_mask=mask_RK, scale=scoring.scale)
    else:
        scores = q_1HRD @ k_HKD.transpose(-1, -2) * scoring.scale
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
        # The mask after the cap: capped, minus infinity would be a finite number with some weight.
        out = scores.float().masked_fill(~mask_RK, float("-inf")).softmax(-1).to(v_HKD.dtype) @ v_HKD
    # CUDA's memory-efficient kernel, which float32 takes, returns a tensor with the heads innermost: `view` would fail.
    return out.reshape(heads, tokens, size)


def partial_attention(
    q_BHTD: Tensor, k_BHPD: Tensor, v_BHPD: Tensor, mask: Tensor | None, scoring: Scoring
) -> tuple[Tensor, Tensor]:
    """Return softmax attention over some of the keys, and the log-sum-exp [B, H, T] of its scores, with which the
    softmax over all keys can be merged.

    Args:
        mask: added to the scores, 0 where a query sees a key; None hides nothing.
    """
    # torch's public attention does not return the log-sum-exp; this kernel does, and never holds all scores.
    if q_BHTD.device.type == "cpu" and scoring.softcap is None:
        outputs: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q_BHTD, k_BHPD, v_BHPD, 0.0, False, attn_mask=mask, scale=scoring.scale
        )
        return outputs
    scores_BHTP = (q_BHTD @ k_BHPD.transpose(-1, -2)).float().mul_(scoring.scale)
    if scoring.softcap is not None:
        scores_BHTP.div_(scoring.softcap).tanh_().mul_(scoring.softcap)
    if mask is not None:
        scores_BHTP += mask
    lse_BHT = scores_BHTP.logsumexp(-1)
    weights_BHTP = scores_BHTP.sub_(lse_BHT[..., None]).exp_()
    return weights_BHTP.to(v_BHPD.dtype) @ v_BHPD, lse_BHT


def hiding(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an additive mask: 0 for visible keys, and a number so low that its weight is 0 for hidden ones.

    It is finite, as all keys of a run may be outside a sequence's window, and a row of minus infinity has no softmax.
    Half of the lowest number leaves room for the score that it is added to.
    """
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, torch.finfo(dtype).min / 2)
