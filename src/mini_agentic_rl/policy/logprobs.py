"""Log-probabilities and entropies of trained tokens, read through the head a few positions at a time.

A `[T, V]` matrix of logits is the first thing that runs out of memory. Here the head sees only positions that predict a
trained token. Where it is a frozen linear layer, logits exist for one block of positions and of the vocabulary, once:
see `frozen_head`. Elsewhere they exist for a block of positions, in the forward pass and again in the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .frozen_head import frozen_head_logprobs
from .model import PolicyModel


@dataclass(frozen=True)
class Targets:
    """R distinct rows of (predicting position, temperature), and for each of S terms its row and its token."""

    position_R: Tensor
    temperature_R: Tensor
    row_S: Tensor
    token_S: Tensor


def targets(predicted_at_S: Tensor, token_S: Tensor, temperature_S: Tensor) -> Targets:
    """Return the rows for terms of token ids `token_S`; a row serves every term that its position predicts."""
    # Rollouts that share a history share the position: its logits are computed once, however many tokens it predicts.
    keys = torch.stack([predicted_at_S.double(), temperature_S.double()], 1)
    unique, row_S = torch.unique(keys, dim=0, return_inverse=True)
    return Targets(unique[:, 0].long(), unique[:, 1].float(), row_S, token_S)


def read_logprobs(
    model: PolicyModel, hidden_TM: Tensor, targets: Targets, *, rows: int, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities [S] of the terms' tokens, and entropies [S] (nats) of the distributions they came from.

    Logits exist for `rows` positions at a time. The entropies have a gradient only where `entropy_gradient` asks for
    it, which costs time.
    """
    # Sorted by row, the terms of a block of rows stand together.
    order = torch.argsort(targets.row_S)
    sorted_rows = targets.row_S[order]
    frozen = model.frozen_head
    logprobs: list[Tensor] = []
    entropies: list[Tensor] = []
    for start in range(0, targets.position_R.numel(), rows):
        stop = min(start + rows, targets.position_R.numel())
        low, high = torch.searchsorted(sorted_rows, torch.tensor([start, stop], device=sorted_rows.device)).tolist()
        hidden_RM = hidden_TM[targets.position_R[start:stop]]
        temperature_R = targets.temperature_R[start:stop]
        row_S, token_S = sorted_rows[low:high] - start, targets.token_S[order[low:high]]
        if frozen is not None:
            weight_VM, scale = frozen
            logprob, entropy = frozen_head_logprobs(
                hidden_RM, weight_VM, scale / temperature_R, row_S, token_S, entropy_gradient=entropy_gradient
            )
        else:
            block = (model, hidden_RM, temperature_R, row_S, token_S, entropy_gradient)
            # Logits of one block at a time also in the backward pass, at the price of computing them again.
            in_backward_too = torch.is_grad_enabled()
            logprob, entropy = checkpoint(_block, *block, use_reentrant=False) if in_backward_too else _block(*block)
        logprobs.append(logprob)
        entropies.append(entropy)
    # From the order of the rows to that of the terms.
    back = torch.empty_like(order)
    back[order] = torch.arange(order.numel(), device=order.device)
    return torch.cat(logprobs)[back], torch.cat(entropies)[back]


def _block(
    model: PolicyModel,
    hidden_RM: Tensor,
    temperature_R: Tensor,
    row_S: Tensor,
    token_S: Tensor,
    entropy_gradient: bool,
) -> tuple[Tensor, Tensor]:
    logits_RV = model.logits(hidden_RM).float() / temperature_R[:, None]
    lse_R = torch.logsumexp(logits_RV, -1)
    logprob_S = logits_RV[row_S, token_S] - lse_R[row_S]
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy_R = lse_R - (torch.exp(logits_RV - lse_R[:, None]) * logits_RV).sum(-1)
    return logprob_S, entropy_R[row_S]
