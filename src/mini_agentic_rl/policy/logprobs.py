"""Log-probabilities and entropies of trained tokens, in chunks through the head.

A `[T, V]` matrix of logits is the first thing that runs out of memory, so logits exist for one chunk of rows at a time,
in the forward pass and again in the backward pass, and only at positions that predict a trained token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .model import PolicyModel


@dataclass(frozen=True)
class Targets:
    """What to read off: R distinct (predicting position, temperature) rows; for each of S terms its row and token."""

    position_R: Tensor
    temperature_R: Tensor
    row_S: Tensor
    token_S: Tensor


def targets(tokens_T: Tensor, parent_T: Tensor, token_index_S: Tensor, temperature_S: Tensor) -> Targets:
    """Rows for the terms at packed indices `token_index_S`; a row serves every term that its position predicts."""
    keys = torch.stack([parent_T[token_index_S].double(), temperature_S.double()], 1)
    unique, row_S = torch.unique(keys, dim=0, return_inverse=True)
    return Targets(unique[:, 0].long(), unique[:, 1].float(), row_S, tokens_T[token_index_S])


def chunked_logprobs(
    model: PolicyModel, hidden_TM: Tensor, targets: Targets, *, chunk_rows: int
) -> tuple[Tensor, Tensor]:
    """Log-probabilities [S] of the terms' tokens and entropies [S] (nats) of the distributions they came from."""
    order = torch.argsort(targets.row_S)
    sorted_rows = targets.row_S[order]
    logprobs: list[Tensor] = []
    entropies: list[Tensor] = []
    for start in range(0, targets.position_R.numel(), chunk_rows):
        stop = min(start + chunk_rows, targets.position_R.numel())
        low, high = torch.searchsorted(sorted_rows, torch.tensor([start, stop], device=sorted_rows.device)).tolist()
        terms = order[low:high]
        rows_hidden = hidden_TM[targets.position_R[start:stop]]
        arguments = (
            model,
            rows_hidden,
            targets.temperature_R[start:stop],
            sorted_rows[low:high] - start,
            targets.token_S[terms],
        )
        if torch.is_grad_enabled():
            logprob, entropy = checkpoint(_chunk, *arguments, use_reentrant=False)
        else:
            logprob, entropy = _chunk(*arguments)
        logprobs.append(logprob)
        entropies.append(entropy)
    back = torch.empty_like(order)
    back[order] = torch.arange(order.numel(), device=order.device)
    return torch.cat(logprobs)[back], torch.cat(entropies)[back]


def _chunk(
    model: PolicyModel, hidden_RM: Tensor, temperature_R: Tensor, row_S: Tensor, token_S: Tensor
) -> tuple[Tensor, Tensor]:
    logits_RV = model.logits(hidden_RM).float() / temperature_R[:, None]
    lse_R = torch.logsumexp(logits_RV, -1)
    logprob_S = logits_RV[row_S, token_S] - lse_R[row_S]
    with torch.no_grad():
        entropy_R = lse_R - (torch.exp(logits_RV - lse_R[:, None]) * logits_RV).sum(-1)
    return logprob_S, entropy_R[row_S]
