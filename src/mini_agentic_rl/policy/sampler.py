"""Draw tokens from logits. A draw depends on the seed and the position of its request, never on the batch.

On a GPU there is one synchronisation: the copy of the draws to the host.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..tokens import ConstraintError, SamplingParams
from . import kernels
from .machine import on_device

_MASK64 = (1 << 64) - 1
_BUCKET = 128


class TokenCounts:
    """Number of times that each token was sampled.

    Args:
        tokens: those sampled so far.
        prompt: tokens before them, which are not counted.
    """

    def __init__(self, tokens: Iterable[int] = (), prompt: Sequence[int] = ()) -> None:
        self.prompt = np.unique(np.asarray(prompt, np.int64))
        """The distinct tokens of the prompt."""
        self._counts = Counter(tokens)

    def add(self, token: int) -> None:
        """Count one more."""
        self._counts[token] += 1

    def counted(self, further: Iterable[int] = ()) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Return the distinct tokens, and how often each was sampled, with a few more tokens counted."""
        counts = self._counts
        if further:
            counts = counts + Counter(further)
        return np.fromiter(counts.keys(), np.int64, len(counts)), np.fromiter(counts.values(), np.float32, len(counts))


@dataclass(frozen=True)
class Row:
    """What the sampler needs of one draw."""

    sampling: SamplingParams
    seed: int
    position: int = 0
    """Number of tokens sampled so far."""
    counts: TokenCounts | None = None
    """Counts of the tokens sampled so far; only under penalties."""
    guessed: Sequence[int] = ()
    """Draft tokens after those in `counts`, treated as sampled; `position` includes them."""
    allowed: npt.NDArray[np.int32] | None = None
    """The tokens that may be drawn, as `fit_mask` gives them; None for all."""


@dataclass(frozen=True)
class Draw:
    """One drawn token."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    forced: bool = False
    """True if no other token was allowed."""


def uniform(seed: int, position: int) -> float:
    """Return a number in (0, 1) that depends on seed and position only (SplitMix64; Steele et al. 2014)."""
    # No generator whose state each draw advances: a preempted sequence draws the same tokens.
    z = (seed * 0x9E3779B97F4A7C15 + (position + 1) * 0xD1B54A32D192ED03) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    z ^= z >> 31
    # A double holds 53 bits; the half excludes 0, at which a token of probability 0 could be drawn.
    return ((z >> 11) + 0.5) / (1 << 53)


def fit_mask(allowed: npt.NDArray[np.int32], vocabulary: int) -> npt.NDArray[np.int32]:
    """Return the mask of a constraint (see `TokenConstraint.allowed`) in as many words as `vocabulary` ids take.

    Raises:
        ConstraintError: the mask allows none of these ids.
    """
    words = -(-vocabulary // 32)
    fitted = np.zeros(words, np.int32)
    fitted[: allowed.size] = allowed[:words]
    if vocabulary % 32:
        # Bits beyond the vocabulary are no tokens.
        fitted[-1] &= (1 << vocabulary % 32) - 1
    if not fitted.any():
        raise ConstraintError("the model's vocabulary has no token that may come next")
    return fitted


def one_token(token: int, vocabulary: int) -> npt.NDArray[np.int32]:
    """Return the mask that allows this token alone."""
    words = np.zeros(-(-vocabulary // 32), np.uint32)
    words[token // 32] = 1 << token % 32
    return words.view(np.int32)


def sample(logits_BV: Tensor, rows: Sequence[Row], places: Sequence[int] | None = None) -> list[Draw]:
    """Draw one token for each row, among those allowed.

    Log-probabilities are those of the whole distribution, after temperature and before truncation: the learner computes
    the same.

    Args:
        logits_BV: may be overwritten.
        places: index of each row's logits; None is their order.
    """
    places = range(len(rows)) if places is None else places
    # The implementation depends on the row's own settings, and never on its neighbours.
    quick = [i for i, row in enumerate(rows) if _is_quick(row)] if kernels.can_draw(logits_BV) else []
    draws: dict[int, Draw] = {}
    if quick:
        tokens, logprobs = kernels.draw_tokens(
            logits_BV,
            [places[i] for i in quick],
            [rows[i].sampling.temperature for i in quick],
            [uniform(rows[i].seed, rows[i].position) for i in quick],
            [rows[i].allowed for i in quick],
        )
        for i, token, logprob in zip(quick, tokens, logprobs, strict=True):
            draws[i] = Draw(token, logprob, (), _is_forced(rows[i]))
    rest = [i for i in range(len(rows)) if i not in draws]
    if rest:
        index = [places[i] for i in rest]
        if index != list(range(len(logits_BV))):
            logits_BV = logits_BV[_indices(index, logits_BV)]
        draws.update(zip(rest, _sample(logits_BV, [rows[i] for i in rest]), strict=True))
    return [draws[i] for i in range(len(rows))]


def _is_quick(row: Row) -> bool:
    """Return True if one pass over unchanged logits draws a row: without penalties, biases and truncation."""
    params = row.sampling
    if params.logit_bias or params.top_logprobs or row.counts is not None or row.position < params.min_tokens:
        return False
    return params.top_p >= 1 and params.top_k <= 0 and params.min_p <= 0


def _is_forced(row: Row) -> bool:
    if row.allowed is None:
        return False
    words = row.allowed[row.allowed.nonzero()].view(np.uint32)
    return len(words) == 1 and int(words[0]).bit_count() == 1


def _sample(logits_BV: Tensor, rows: Sequence[Row]) -> list[Draw]:
    # In 16 bits the log-sum-exp over a vocabulary would differ from the learner's.
    logits_BV = logits_BV.float()
    _adjust(logits_BV, rows)
    temperatures = [row.sampling.temperature for row in rows]
    if any(t not in (0.0, 1.0) for t in temperatures):
        with np.errstate(over="ignore"):  # beyond float32 it is infinite: a uniform distribution
            scale_B = np.array([t if t > 0 else 1.0 for t in temperatures]).astype(np.float32)
        logits_BV.div_(on_device(scale_B, logits_BV.device)[:, None])
    logits_BV.sub_(torch.logsumexp(logits_BV, -1, keepdim=True))
    tokens_B = torch.empty(len(rows), dtype=torch.long, device=logits_BV.device)
    greedy = [i for i, t in enumerate(temperatures) if t == 0]
    drawn = [i for i, t in enumerate(temperatures) if t > 0]
    choices_BV = _restrict(logits_BV, rows)
    if greedy:
        greedy_N = _indices(greedy, logits_BV)
        tokens_B[greedy_N] = choices_BV[greedy_N].argmax(-1)
    if drawn:
        drawn_N = _indices(drawn, logits_BV)
        probs_NV = torch.exp(choices_BV if len(drawn) == len(rows) else choices_BV[drawn_N])
        params = [rows[i].sampling for i in drawn]
        cut = [at for at, p in enumerate(params) if p.top_p < 1 or p.top_k > 0 or p.min_p > 0]
        if len(cut) == len(drawn):
            probs_NV = _truncate(probs_NV, params)
        elif cut:  # sorting a vocabulary costs more than drawing from it, so only these rows are sorted
            cut_N = _indices(cut, logits_BV)
            probs_NV[cut_N] = _truncate(probs_NV[cut_N], [params[at] for at in cut])
        u_N = np.array([uniform(rows[i].seed, rows[i].position) for i in drawn])
        tokens_B[drawn_N] = _inverse_cdf(probs_NV, on_device(u_N, probs_NV.device))
    read = _read(logits_BV, tokens_B[:, None], rows)
    return [Draw(*parts, _is_forced(row)) for parts, row in zip(read, rows, strict=True)]


def _indices(places: Sequence[int] | npt.NDArray[np.int64], beside: Tensor) -> Tensor:
    """Return indices on the device of another tensor; indexing with a list would synchronise."""
    return on_device(np.array(places, np.int64), beside.device)


_Part: TypeAlias = tuple[int, npt.NDArray[np.int64], npt.NDArray[np.float32]]
"""A row, token ids, and a number for each."""


def _adjust(logits_BV: Tensor, rows: Sequence[Row]) -> None:
    """Add biases, scale repeated tokens and subtract penalties, each in one operation for all rows."""
    biases: list[_Part] = [(i, *row.sampling.bias) for i, row in enumerate(rows) if row.sampling.logit_bias]
    scales: list[_Part] = []
    penalties: list[_Part] = []
    for i, row in enumerate(rows):
        if row.counts is None:
            continue
        params = row.sampling
        ids, counts = row.counts.counted(row.guessed)
        if params.repetition_penalty != 1:
            before = np.concatenate([row.counts.prompt, ids])
            scales.append((i, before, np.full(before.size, params.repetition_penalty, np.float32)))
        if params.presence_penalty or params.frequency_penalty:
            # Only tokens of the answer: those of the prompt are not penalised.
            penalties.append((i, ids, -(params.presence_penalty + params.frequency_penalty * counts)))
    if biases:
        place_2N, bias_N = _placed(biases, logits_BV)
        logits_BV.index_put_(place_2N, bias_N, accumulate=True)
    if scales:
        place_2N, scale_N = _placed(scales, logits_BV)
        logit_N = logits_BV[place_2N]
        logits_BV.index_put_(place_2N, torch.where(logit_N > 0, logit_N / scale_N, logit_N * scale_N))
    if penalties:
        place_2N, change_N = _placed(penalties, logits_BV)
        logits_BV.index_put_(place_2N, change_N, accumulate=True)


def _placed(parts: Sequence[_Part], beside: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Return the rows and token ids of all parts as one index, and their values, on the device of another tensor."""
    row_N = np.repeat([i for i, *_ in parts], [ids.size for _, ids, _ in parts])
    id_N = np.concatenate([ids for _, ids, _ in parts])
    number_N = np.concatenate([numbers for *_, numbers in parts]).astype(np.float32)
    return (_indices(row_N, beside), _indices(id_N, beside)), on_device(number_N, beside.device)


def _restrict(logprobs_BV: Tensor, rows: Sequence[Row]) -> Tensor:
    """Return log-probabilities to draw with, over the allowed tokens alone.

    Renormalised, because the allowed tokens may have probabilities that are 0 in float32.
    """
    masks = [_allowed(row, logprobs_BV.shape[1]) for row in rows]
    limited = [(i, mask) for i, mask in enumerate(masks) if mask is not None]
    if not limited:
        return logprobs_BV
    masks_NW = np.stack([mask for _, mask in limited])
    bits_NV = np.unpackbits(masks_NW.view(np.uint8), axis=1, count=logprobs_BV.shape[1], bitorder="little")
    allowed_NV = on_device(bits_NV, logprobs_BV.device).bool()
    index_N = _indices([i for i, _ in limited], logprobs_BV)
    choices_NV = logprobs_BV[index_N].masked_fill_(~allowed_NV, -torch.inf)
    choices_NV.sub_(torch.logsumexp(choices_NV, -1, keepdim=True))
    if len(limited) == len(rows):
        return choices_NV
    choices_BV = logprobs_BV.clone()
    choices_BV[index_N] = choices_NV
    return choices_BV


def _allowed(row: Row, vocabulary: int) -> npt.NDArray[np.int32] | None:
    """Return the mask of the tokens that may be drawn, without those that would end the sequence too early."""
    if row.position >= row.sampling.min_tokens:
        return row.allowed
    words = np.full(-(-vocabulary // 32), -1, np.int32) if row.allowed is None else row.allowed.copy()
    for id_ in row.sampling.stop_token_ids:
        if id_ < vocabulary:
            words.view(np.uint32)[id_ // 32] &= np.uint32(~(1 << id_ % 32) & 0xFFFFFFFF)
    return words


def _inverse_cdf(probs_BV: Tensor, u_B: Tensor) -> Tensor:
    """Return the token at which the cumulated probability passes u.

    The search has two levels, so that no sum is long: in a sum over the whole vocabulary, rounding would take
    probability from the last tokens.
    """
    batch, vocab = probs_BV.shape
    padded_BUO = torch.nn.functional.pad(probs_BV, (0, -vocab % _BUCKET)).view(batch, -1, _BUCKET)
    # Doubles, because u has 53 bits.
    mass_BU = padded_BUO.sum(-1).double().cumsum(-1)
    target_B = u_B * mass_BU[:, -1]
    bucket_B1 = torch.searchsorted(mass_BU, target_B[:, None]).clamp_(max=mass_BU.shape[1] - 1)
    before_B1 = torch.where(
        bucket_B1 > 0, mass_BU.gather(1, (bucket_B1 - 1).clamp(min=0)), torch.zeros_like(target_B[:, None])
    )
    inside_BO = padded_BUO.gather(1, bucket_B1[:, :, None].expand(-1, -1, _BUCKET))[:, 0].double()
    offset_B1 = torch.searchsorted(inside_BO.cumsum(-1), (target_B[:, None] - before_B1)).clamp_(max=_BUCKET - 1)
    chosen_B = (bucket_B1 * _BUCKET + offset_B1)[:, 0]
    # Rounding may select a token of probability 0 at the end of a bucket: take the bucket's most likely token instead.
    zero_B = inside_BO.gather(1, offset_B1)[:, 0] <= 0
    return torch.where(zero_B, bucket_B1[:, 0] * _BUCKET + inside_BO.argmax(-1), chosen_B)


def _truncate(probs_BV: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Set the probabilities that top-k, top-p and min-p exclude to zero, without renormalising."""
    ordered_BV, index_BV = probs_BV.sort(-1, descending=True)
    rank_1V = torch.arange(ordered_BV.shape[1], device=ordered_BV.device)[None, :]
    vocab = ordered_BV.shape[1]
    device = ordered_BV.device
    top_k_B1 = on_device(np.array([[min(p.top_k or vocab, vocab)] for p in params], np.int64), device)
    top_p_B1 = on_device(np.array([[p.top_p] for p in params], np.float32), device)
    floor_B1 = on_device(np.array([[p.min_p] for p in params], np.float32), device)
    # Mass before a token, without its own: the nucleus includes the token that passes top-p.
    before_BV = ordered_BV.cumsum(-1) - ordered_BV
    keep_BV = (
        (rank_1V < top_k_B1) & ((before_BV < top_p_B1) | (rank_1V == 0)) & (ordered_BV >= floor_B1 * ordered_BV[:, :1])
    )
    return torch.zeros_like(probs_BV).scatter_(1, index_BV, ordered_BV * keep_BV)


def _read(
    logprobs_BV: Tensor, tokens_B1: Tensor, rows: Sequence[Row]
) -> Iterator[tuple[int, float, tuple[tuple[int, float], ...]]]:
    """Yield each row's token, its log-probability and its most likely tokens, with one copy to the host."""
    most = min(max(row.sampling.top_logprobs for row in rows), logprobs_BV.shape[1])
    ids_BN, values_BN = tokens_B1, logprobs_BV.gather(1, tokens_B1)
    if most:
        best = logprobs_BV.topk(most, -1)
        ids_BN, values_BN = torch.cat([ids_BN, best.indices], 1), torch.cat([values_BN, best.values], 1)
    # Floats are copied as the bits of integers, so that one copy is enough.
    both = torch.cat([ids_BN.int(), values_BN.view(torch.int32)], 1).cpu().numpy()
    ids, values = both[:, : 1 + most].tolist(), both[:, 1 + most :].view(np.float32).tolist()
    for row, (token, *top), (logprob, *top_values) in zip(rows, ids, values, strict=True):
        # JSON has no infinity: tokens of probability 0 are left out.
        best_first = zip(top, top_values, strict=True)
        wanted = [(id_, value) for id_, value in best_first if value > -math.inf][: row.sampling.top_logprobs]
        yield token, logprob, tuple(wanted)
