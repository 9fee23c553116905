"""One pass over packed trees, in chunks that bound its memory, each token computed once.

Of several ranks (`PolicyModel.ranks`), each computes its share of the trees.

Chunks run in depth-first order. A chunk that later chunks attend to keeps its keys and values, and waits for their
gradients before its own backward pass; any other runs its backward pass at once. So only one chunk and the path above
it exist at a time, and the places where the trees are cut change no result beyond rounding. `Scorer` runs such passes
without a gradient, under an adapter, the bare model or a teacher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..tokens import PackedTrees, TreeChunk, cut, divide
from .errors import refuse_unknown_token
from .head import read_logprobs
from .model import PolicyModel
from .rank_group import BACKWARD, FORWARD, NO_SWEEP
from .tree_attention import KeptKeys, TreeTables, flex_on


@dataclass(frozen=True)
class ChunkTerms:
    """The terms that one chunk predicts."""

    terms_N: np.ndarray
    """Their indices among the pack's terms."""
    logprobs_N: Tensor
    """Log-probabilities of their tokens."""
    entropy_N: Tensor
    """Entropies (nats) of the distributions they were drawn from; with a gradient under `entropy_gradient`."""
    hidden_TM: Tensor
    """Last hidden states of all of the chunk's tokens."""
    at_N: Tensor
    """Indices of the states that predict the terms: those that each token was sampled in."""


@dataclass(frozen=True)
class _WaitingChunk:
    """A chunk whose keys later chunks may attend to, and its own loss."""

    kept: KeptKeys
    hidden_TM: Tensor
    loss: Tensor | None


class TreePass:
    """A forward pass over `packed`, with the backward pass where gradients are on."""

    def __init__(
        self,
        model: PolicyModel,
        packed: PackedTrees,
        *,
        max_tokens: int,
        head_rows: int,
        entropy_gradient: bool = False,
        flex: bool,
    ) -> None:
        """
        Args:
            max_tokens: the most tokens of a chunk.
            head_rows: LM-head chunk size, in positions.
            entropy_gradient: True gives the entropies a gradient.
            flex: True uses FlexAttention where the device has it.
        """
        self._model = model
        self._terms_S = np.arange(packed.term_count)
        """Indices of this rank's terms among those of the whole pack."""
        has_share = True
        if model.ranks is not None:
            share = divide(packed, model.ranks.size)[model.ranks.rank]
            has_share = share is not None
            if share is not None:
                packed, self._terms_S = share.packed, share.terms_N
        self._chunks: Iterable[TreeChunk] = cut(packed, max_tokens) if has_share else ()
        self._packed = packed
        self._head_rows = head_rows
        self._entropy_gradient = entropy_gradient
        kind = (model.device, model.dtype, model.heads, model.kv_heads, model.head_size)
        self._flex = flex_on(*kind) if flex else None
        refuse_unknown_token(int(packed.tokens_T.max(initial=0)), model.vocab_size)
        self._tokens_T = torch.from_numpy(packed.tokens_T).to(model.device)
        self._positions_T = torch.from_numpy(packed.positions_T).to(model.device)
        self._predicted_at_S = packed.predicted_at_S
        self._target_S = torch.from_numpy(packed.target_S).to(model.device)

    def run(self, on_terms: Callable[[ChunkTerms], Tensor | None]) -> None:
        """Hand each chunk's terms to `on_terms`, and differentiate the loss that it returns.

        The losses must add up to the pack's: nothing in one may depend on the terms of another.
        """
        path: list[_WaitingChunk] = []
        for chunk in self._chunks:
            self._model.pause()
            self._model.threads.adapt()
            # Depth first: once a subtree is finished, no later chunk attends to its keys.
            while path and path[-1].kept.chunk.reach <= chunk.start:
                self._backward(path.pop())
            done = self._forward(chunk, [waiting.kept for waiting in path], on_terms)
            if chunk.reach > chunk.stop:
                path.append(done)
            else:
                self._backward(done)
        while path:
            self._backward(path.pop())
        if self._model.shards is not None:
            self._model.shards.begin(NO_SWEEP)

    def _forward(
        self, chunk: TreeChunk, path: list[KeptKeys], on_terms: Callable[[ChunkTerms], Tensor | None]
    ) -> _WaitingChunk:
        rows = slice(chunk.start, chunk.stop)
        kept = KeptKeys(chunk)
        keep = kept if chunk.reach > chunk.stop else None
        if self._model.shards is not None:
            self._model.shards.begin(FORWARD)
        tables = TreeTables(self._packed, chunk, path, keep, self._model.device, self._flex)
        hidden_TM = self._model.hidden(self._tokens_T[rows], self._positions_T[rows], tables)
        at = self._predicted_at_S
        # A term belongs to the chunk that predicts it: the token itself may be the first of the next chunk.
        terms_N = np.flatnonzero((at >= chunk.start) & (at < chunk.stop))
        if terms_N.size == 0:
            return _WaitingChunk(kept, hidden_TM, None)
        device = hidden_TM.device
        at_N = torch.from_numpy(at[terms_N] - chunk.start).to(device)
        logprobs_N, entropy_N = read_logprobs(
            self._model,
            hidden_TM,
            at_N,
            self._target_S[torch.from_numpy(terms_N).to(device)],
            torch.from_numpy(self._packed.temperature_S[terms_N]).to(device),
            rows=self._head_rows,
            entropy_gradient=self._entropy_gradient,
        )
        terms = ChunkTerms(self._terms_S[terms_N], logprobs_N, entropy_N, hidden_TM, at_N)
        return _WaitingChunk(kept, hidden_TM, on_terms(terms))

    def _backward(self, waiting: _WaitingChunk) -> None:
        """Run the backward pass of a chunk, from its own loss and from the gradients of its kept keys and values."""
        roots, gradients = waiting.kept.gathered()
        if waiting.loss is not None and (waiting.loss.requires_grad or not roots):
            roots.append(waiting.loss)
            gradients.append(torch.ones_like(waiting.loss))
        if self._model.shards is not None and torch.is_grad_enabled():
            # The last layer is gathered only if its output has a gradient.
            roots.append(waiting.hidden_TM)
            gradients.append(torch.zeros_like(waiting.hidden_TM))
            self._model.shards.begin(BACKWARD)
        # One call for all roots, so that the chunk's graph is walked once.
        if roots:
            torch.autograd.backward(roots, gradients)


@dataclass(frozen=True)
class Likeliest:
    """The most likely tokens in the state that each of S terms was sampled in."""

    tokens_SK: Tensor | None
    """Their ids; None where these are all tokens of the vocabulary, in their order."""
    logprobs_SK: Tensor
    """Their log-probabilities (float32)."""


class Scorer:
    """Passes without a gradient over packed trees."""

    def __init__(
        self, model: PolicyModel, adapter: str | None, *, max_tokens: int, head_rows: int, flex: bool = True
    ) -> None:
        """
        Args:
            adapter: the adapter that computes; None is the bare model.
            max_tokens: the most packed tokens of a pass.
            head_rows: LM-head chunk size, in positions.
            flex: False uses no FlexAttention. Old and reference log-probabilities have to come from the same
                kernels as the gradients, so a learner passes its own setting.
        """
        self._model = model
        self._adapter = adapter
        self._max_tokens = max_tokens
        self._head_rows = head_rows
        self._flex = flex

    def logprobs(self, packed: PackedTrees) -> Tensor:
        """Return log-probabilities [S] of the terms' tokens."""
        return self.each_term(packed, lambda chunk: chunk.logprobs_N)

    @torch.no_grad()
    def likeliest(self, packed: PackedTrees, count: int) -> Likeliest:
        """Return the `count` most likely tokens of each term's state, at the temperature it was sampled at; 0 is the
        whole vocabulary. The result is on the CPU: 4 bytes for each number, and 8 for each id."""
        model, whole = self._model, count == 0 or count >= self._model.vocab_size
        width = model.vocab_size if whole else count
        logprobs_SK = torch.zeros(packed.term_count, width)
        tokens_SK = None if whole else torch.zeros(packed.term_count, width, dtype=torch.long)

        def on_terms(chunk: ChunkTerms) -> None:
            terms_N = torch.from_numpy(chunk.terms_N)
            temperature_N = torch.from_numpy(packed.temperature_S[chunk.terms_N]).to(chunk.hidden_TM.device)
            for start in range(0, terms_N.numel(), self._head_rows):
                block = slice(start, start + self._head_rows)
                logits_NV = model.logits(chunk.hidden_TM[chunk.at_N[block]]).float() / temperature_N[block, None]
                top_NK = logits_NV.log_softmax(-1)
                if tokens_SK is not None:
                    top_NK, ids_NK = top_NK.topk(width, dim=-1)
                    tokens_SK[terms_N[block]] = ids_NK.cpu()
                logprobs_SK[terms_N[block]] = top_NK[:, :width].cpu()

        self._run(packed, on_terms)
        if model.ranks is not None:
            model.ranks.join_rows(logprobs_SK)
            if tokens_SK is not None:
                model.ranks.join_rows(tokens_SK)
        return Likeliest(tokens_SK, logprobs_SK)

    @torch.no_grad()
    def each_term(self, packed: PackedTrees, read: Callable[[ChunkTerms], Tensor]) -> Tensor:
        """Return the numbers [S] that `read` gives for the terms of each chunk."""
        values_S = torch.zeros(packed.term_count, device=self._model.device)

        def on_terms(chunk: ChunkTerms) -> None:
            values_S[torch.from_numpy(chunk.terms_N).to(values_S.device)] = read(chunk)

        self._run(packed, on_terms)
        if self._model.ranks is not None:
            self._model.ranks.join_rows(values_S)
        return values_S

    def _run(self, packed: PackedTrees, on_terms: Callable[[ChunkTerms], None]) -> None:
        model = self._model
        model.base.eval()
        with model.using(self._adapter):
            TreePass(model, packed, max_tokens=self._max_tokens, head_rows=self._head_rows, flex=self._flex).run(
                on_terms
            )
