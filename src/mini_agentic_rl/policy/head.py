"""From hidden states to log-probabilities, entropies and the divergence from a teacher, a few positions at a time.

A `[T, V]` matrix of logits would not fit into memory. The head computes only positions that predict a trained token.
If it is a frozen linear layer, the logits of a block of positions and of the vocabulary exist once. Otherwise the
logits of a block of positions are computed in the forward pass, and again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from . import kernels
from .model import PolicyModel


def read_logprobs(
    model: PolicyModel,
    hidden_TM: Tensor,
    at_S: Tensor,
    token_S: Tensor,
    temperature_S: Tensor,
    *,
    rows: int,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities [S] of tokens, and entropies [S] (nats) of the distributions that they came from.

    Args:
        at_S: index of the hidden state that predicts each token.
        rows: LM-head chunk size, in positions: logits exist for so many at a time.
        entropy_gradient: True gives the entropies a gradient, which costs time.
    """
    # Rollouts that share a history share the position: a row of logits is computed once for each distinct pair of
    # position and temperature, however many tokens it predicts.
    pairs = torch.stack([at_S.double(), temperature_S.double()], 1)
    pairs_P2, pair_S = torch.unique(pairs, dim=0, return_inverse=True)
    position_P, temperature_P = pairs_P2[:, 0].long(), pairs_P2[:, 1].float()
    # Sorted by row, the terms of a block of rows follow each other.
    order = torch.argsort(pair_S)
    sorted_rows = pair_S[order]
    frozen = model.frozen_head
    parts: list[tuple[Tensor, Tensor]] = []
    for start in range(0, position_P.numel(), rows):
        stop = min(start + rows, position_P.numel())
        low, high = torch.searchsorted(sorted_rows, torch.tensor([start, stop], device=sorted_rows.device)).tolist()
        hidden_RM, temperature_R = hidden_TM[position_P[start:stop]], temperature_P[start:stop]
        block = (sorted_rows[low:high] - start, token_S[order[low:high]], entropy_gradient)
        if frozen is None:
            parts.append(_recomputed(_logprobs_of_rows, model, hidden_RM, temperature_R, *block))
        else:
            weight_VM, scale = frozen
            parts.append(frozen_head_logprobs(hidden_RM, weight_VM, scale / temperature_R, *block))
    # From the order of the rows to that of the terms.
    back = torch.empty_like(order)
    back[order] = torch.arange(order.numel(), device=order.device)
    logprob_S, entropy_S = (torch.cat(part)[back] for part in zip(*parts, strict=True))
    return logprob_S, entropy_S


def _recomputed(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return `function(*arguments)`; its logits are freed and recomputed in the backward pass."""
    return checkpoint(function, *arguments, use_reentrant=False) if torch.is_grad_enabled() else function(*arguments)


def _logprobs_of_rows(
    model: PolicyModel, hidden_RM: Tensor, temperature_R: Tensor, row_S: Tensor, token_S: Tensor, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    logits_RV = model.logits(hidden_RM).float() / temperature_R[:, None]
    lse_R = torch.logsumexp(logits_RV, -1)
    logprob_S = logits_RV[row_S, token_S] - lse_R[row_S]
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy_R = lse_R - (torch.exp(logits_RV - lse_R[:, None]) * logits_RV).sum(-1)
    return logprob_S, entropy_R[row_S]


VOCAB_BLOCK = 8192


def frozen_head_logprobs(
    hidden_RM: Tensor,
    weight_VM: Tensor,
    scale_R: Tensor,
    row_S: Tensor,
    token_S: Tensor,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities [S] (float32) of `token_S` at positions `row_S`, and the entropies [S] there.

    Args:
        weight_VM: the head; it gets no gradient.
        scale_R: factor on each position's logits.
        entropy_gradient: True if the entropies have a gradient.
    """
    return _FrozenHead.apply(hidden_RM, weight_VM, scale_R, row_S, token_S, entropy_gradient)  # type: ignore[no-any-return, no-untyped-call]  # torch


class _FrozenHead(torch.autograd.Function):
    """Log-probabilities through a frozen linear head, with the gradient computed in the forward pass.

    For a position with hidden state h, logits z = s W h and probabilities p, the log-probability of token t has

        d log p_t / d h = s (W_t - sum_v p_v W_v)

    The sum over the vocabulary is the same for every token read at that position, so it is accumulated block by block
    beside the log-sum-exp, rescaled when a larger logit turns up (online softmax; Milakov and Gimelshein 2018). The
    backward pass then needs neither logits nor head: two matrix products in all; recomputing the logits would take
    three.

    The entropy H = -sum_v p_v log p_v has, with m the mean of the logits under p,

        d H / d h = -s sum_v p_v (z_v - m) W_v

    which takes one more matrix product a block, and is accumulated only under `entropy_gradient`.

    The most likely token is left out of the sum and added in float32. A trained policy is nearly certain, and W_t minus
    the sum would then be a small difference of large numbers, which 16 bits cannot represent. For the same reason the
    gradient of the entropy uses logits relative to the top one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_RM: Tensor,
        weight_VM: Tensor,
        scale_R: Tensor,
        row_S: Tensor,
        token_S: Tensor,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        differentiate = ctx.needs_input_grad[0]
        of_entropy = differentiate and entropy_gradient
        compiled = not of_entropy and kernels.usable(hidden_RM.dtype, hidden_RM.device)
        sum_up = _compiled_sums if compiled else _sums
        sums = sum_up(hidden_RM, weight_VM, scale_R, row_S, token_S, differentiate, of_entropy)
        top_R, top_token_R, rest_R, rest_logits_R, rest_weights_RM, gaps_R, gap_weights_RM, logit_S = sums
        total_R = 1.0 + rest_R
        # log1p: log(1 + rest) would round to 0 where the policy is nearly certain.
        log_total_R = torch.log1p(rest_R)
        logprob_S = (logit_S - top_R[row_S]) - log_total_R[row_S]
        mean_logit_R = (top_R + rest_logits_R) / total_R
        entropy_S = (top_R + log_total_R - mean_logit_R)[row_S]
        if differentiate:
            rest_weights_RM /= total_R[:, None]
            entropy_RM = None
            if of_entropy:
                gaps_R /= total_R
                entropy_RM = gap_weights_RM.div_(total_R[:, None]).addcmul_(rest_weights_RM, -gaps_R[:, None])
                entropy_RM.addcmul_(weight_VM[top_token_R].float(), (-gaps_R / total_R)[:, None])
            ctx.save_for_backward(weight_VM, scale_R, row_S, token_S, top_token_R, rest_R, rest_weights_RM, entropy_RM)
            ctx.dtype = hidden_RM.dtype  # the sums stay in float32 to the end: one rounding, in `backward`
        if not of_entropy:
            ctx.mark_non_differentiable(entropy_S)
        return logprob_S, entropy_S

    @staticmethod
    def backward(
        ctx: Any, grad_S: Tensor, entropy_grad_S: Tensor
    ) -> tuple[Tensor | None, None, None, None, None, None]:
        weight_VM, scale_R, row_S, token_S, top_token_R, rest_R, rest_weights_RM, entropy_RM = ctx.saved_tensors
        grad_S = grad_S * scale_R[row_S]
        top_S = top_token_R[row_S]
        # W_t - p_top W_top, with 1 - p_top taken from the rest, where it is exact.
        outside_R = rest_R / (1.0 + rest_R)
        is_top_S = token_S == top_S
        of_token_S = torch.where(is_top_S, outside_R[row_S], torch.ones_like(grad_S))
        of_top_S = torch.where(is_top_S, torch.zeros_like(grad_S), 1.0 - outside_R[row_S])
        direction_SM = weight_VM[token_S].float() * of_token_S[:, None]
        direction_SM -= weight_VM[top_S].float() * of_top_S[:, None]
        direction_SM -= rest_weights_RM[row_S]
        grad_RM = torch.zeros_like(rest_weights_RM).index_add_(0, row_S, direction_SM * grad_S[:, None])
        if entropy_RM is not None:
            entropy_grad_R = torch.zeros_like(scale_R).index_add_(0, row_S, entropy_grad_S)
            grad_RM.addcmul_(entropy_RM, -(entropy_grad_R * scale_R)[:, None])
        return grad_RM.to(ctx.dtype), None, None, None, None, None


class _Sums(NamedTuple):
    """Sums over the vocabulary, of exp(logit - top) over all tokens but the top one."""

    top_R: Tensor
    top_token_R: Tensor
    rest_R: Tensor
    rest_logits_R: Tensor
    """Every term times its logit."""
    rest_weights_RM: Tensor
    """Every term times its token's row of the head; zeros without a gradient."""
    gaps_R: Tensor
    """Every term times (logit - top): relative to the top, so that they do not cancel."""
    gap_weights_RM: Tensor
    """The same times the row of the head; empty where the entropy has no gradient."""
    logit_S: Tensor
    """Logits of the terms' tokens."""


def _sums(
    hidden_RM: Tensor,
    weight_VM: Tensor,
    scale_R: Tensor,
    row_S: Tensor,
    token_S: Tensor,
    differentiate: bool,
    of_entropy: bool,
) -> _Sums:
    rows, vocab = hidden_RM.shape[0], weight_VM.shape[0]
    row_R = torch.arange(rows, device=hidden_RM.device)
    # All sums are of exp(logit - top) over the tokens seen so far but the top one.
    top_R = torch.full((rows,), float("-inf"), device=hidden_RM.device)
    top_token_R = torch.zeros(rows, dtype=torch.long, device=hidden_RM.device)
    rest_R = torch.zeros_like(top_R)
    rest_logits_R = torch.zeros_like(top_R)
    rest_weights_RM = torch.zeros(hidden_RM.shape, dtype=torch.float32, device=hidden_RM.device)
    # The same sums with every term times (logit - top): relative to the top, so that they do not cancel.
    gaps_R = torch.zeros_like(top_R)
    gap_weights_RM = torch.zeros_like(rest_weights_RM) if of_entropy else torch.empty(0)
    logit_S = torch.empty(row_S.shape, dtype=torch.float32, device=hidden_RM.device)
    # Two buffers for all blocks: page faults of fresh memory would cost more than the computation.
    buffers = rest_weights_RM.new_empty(2, rows * min(vocab, VOCAB_BLOCK))
    for start in range(0, vocab, VOCAB_BLOCK):
        block_VM = weight_VM[start : start + VOCAB_BLOCK]
        logits_RV, exp_RV = buffers[:, : rows * len(block_VM)].view(2, rows, -1)
        if hidden_RM.dtype == logits_RV.dtype:
            torch.mm(hidden_RM, block_VM.T, out=logits_RV)
        else:
            logits_RV.copy_(hidden_RM @ block_VM.T)
        logits_RV.mul_(scale_R[:, None])
        inside_S = (token_S >= start) & (token_S < start + block_VM.shape[0])
        logit_S[inside_S] = logits_RV[row_S[inside_S], token_S[inside_S] - start]
        block_top_R, block_token_R = logits_RV.max(-1)
        new_R = torch.maximum(top_R, block_top_R)
        rises_R = block_top_R > top_R
        # Older sums are of exp(logit - old top).
        shrink_R = torch.exp(top_R - new_R)
        torch.sub(logits_RV, new_R[:, None], out=exp_RV).exp_()
        # The top token is left out of all sums (see above).
        exp_RV[row_R[rises_R], block_token_R[rises_R]] = 0.0
        # Where a new token is the top one, the old one joins the rest.
        joins_R = torch.where(rises_R, shrink_R, torch.zeros_like(shrink_R))
        if of_entropy:
            # Before the first block the top is minus infinity, and infinity times a sum of 0 would be NaN.
            shift_R = torch.where(torch.isfinite(top_R), top_R - new_R, torch.zeros_like(top_R))
            exp_gap_RV = exp_RV * (logits_RV - new_R[:, None])
            gaps_R = shrink_R * (gaps_R + shift_R * rest_R) + joins_R * shift_R + exp_gap_RV.sum(-1)
            gap_weights_RM.addcmul_(rest_weights_RM, shift_R[:, None]).mul_(shrink_R[:, None])
            gap_weights_RM.addcmul_(weight_VM[top_token_R].float(), (joins_R * shift_R)[:, None])
            gap_weights_RM.add_(exp_gap_RV.to(block_VM.dtype) @ block_VM)
        rest_R = rest_R * shrink_R + exp_RV.sum(-1) + joins_R
        old_top_R = torch.where(torch.isfinite(top_R), top_R, torch.zeros_like(top_R))
        rest_logits_R = rest_logits_R * shrink_R + logits_RV.mul_(exp_RV).sum(-1) + joins_R * old_top_R
        # The product is in the head's type, for speed; the sum over blocks is in float32.
        if differentiate:
            rest_weights_RM.mul_(shrink_R[:, None])
            rest_weights_RM.addcmul_(weight_VM[top_token_R].float(), joins_R[:, None])
            rest_weights_RM.add_(exp_RV.to(block_VM.dtype) @ block_VM)
        top_token_R = torch.where(rises_R, block_token_R + start, top_token_R)
        top_R = new_R
    return _Sums(top_R, top_token_R, rest_R, rest_logits_R, rest_weights_RM, gaps_R, gap_weights_RM, logit_S)


def _compiled_sums(
    hidden_RM: Tensor,
    weight_VM: Tensor,
    scale_R: Tensor,
    row_S: Tensor,
    token_S: Tensor,
    differentiate: bool,
    of_entropy: bool,
) -> _Sums:
    """Return the same from C++; it gives the entropy no gradient."""
    rows, vocab = hidden_RM.shape[0], weight_VM.shape[0]
    sums = kernels.HeadSums.of_none(rows)
    rest_weights_RM = torch.zeros(hidden_RM.shape)
    logit_S, none = torch.empty(row_S.shape), torch.empty(0)
    # One buffer for all blocks: page faults of fresh memory would cost more than the computation.
    buffer = hidden_RM.new_empty(rows * min(vocab, VOCAB_BLOCK))
    for start in range(0, vocab, VOCAB_BLOCK):
        block_VM = weight_VM[start : start + VOCAB_BLOCK]
        logits_RV = buffer[: rows * len(block_VM)].view(rows, -1)
        torch.mm(hidden_RM, block_VM.T, out=logits_RV)
        inside_S = (token_S >= start) & (token_S < start + len(block_VM))
        rows_N = row_S[inside_S]
        logit_S[inside_S] = logits_RV[rows_N, token_S[inside_S] - start].float() * scale_R[rows_N]
        shrink_R, join_R, joining_R = sums.add(logits_RV, scale_R, start)
        if differentiate:
            rest_weights_RM.mul_(shrink_R[:, None])
            rest_weights_RM.addcmul_(weight_VM[joining_R].float(), join_R[:, None])
            rest_weights_RM.add_(logits_RV @ block_VM)
    return _Sums(
        *(sums.top_R, sums.top_token_R, sums.rest_R, sums.rest_logits_R),
        *(rest_weights_RM, none, none, logit_S),
    )


_SMALLEST = 1e-7
"""Least probability of all other tokens together: the sum of the top tokens may round to 1."""


def teacher_kl(
    model: PolicyModel,
    hidden_NM: Tensor,
    temperature_N: Tensor,
    tokens_NK: Tensor | None,
    teacher_logprobs_NK: Tensor,
    *,
    rows: int,
) -> Tensor:
    """Return the divergence D [N] of the policy pi from a teacher in N states, with a gradient.

    With the K tokens that the teacher finds most likely, and q and p what teacher and policy give to all others
    together,

        D = sum over the K tokens v of pi(v) (log pi(v) - log pi_T(v)) + p (log p - log q)

    It is the reverse divergence KL(pi || pi_T) with all other tokens merged into one: a lower bound of the divergence
    over the vocabulary, and exact if K is the vocabulary size. Without the last term the policy could lower D by moving
    probability away from the K tokens.

    Args:
        hidden_NM: last hidden states of the policy.
        tokens_NK: the teacher's most likely tokens; None if these are the whole vocabulary in its order.
        rows: LM-head chunk size, in states.
    """
    divergences = []
    for start in range(0, hidden_NM.shape[0], rows):
        block = slice(start, start + rows)
        tokens = None if tokens_NK is None else tokens_NK[block]
        inputs = (hidden_NM[block], temperature_N[block], tokens, teacher_logprobs_NK[block])
        divergences.append(_recomputed(_kl_of_rows, model, *inputs))
    return torch.cat(divergences)


def _kl_of_rows(
    model: PolicyModel, hidden_RM: Tensor, temperature_R: Tensor, tokens_RK: Tensor | None, teacher_RK: Tensor
) -> Tensor:
    logprobs_RV = (model.logits(hidden_RM).float() / temperature_R[:, None]).log_softmax(-1)
    if tokens_RK is None:
        return divergence(logprobs_RV[:, : teacher_RK.shape[1]], teacher_RK, whole=True)
    return divergence(logprobs_RV.gather(1, tokens_RK), teacher_RK, whole=False)


def divergence(logprobs_RK: Tensor, teacher_RK: Tensor, *, whole: bool) -> Tensor:
    """Return D [R] from log pi and log pi_T of K tokens; `whole` if there are no other tokens."""
    policy_RK = logprobs_RK.exp()
    among_R = (policy_RK * (logprobs_RK - teacher_RK)).sum(-1)
    if whole:
        return among_R
    rest_R, teacher_rest_R = ((1 - p_RK.sum(-1)).clamp(min=_SMALLEST) for p_RK in (policy_RK, teacher_RK.exp()))
    return among_R + rest_R * (rest_R / teacher_rest_R).log()
