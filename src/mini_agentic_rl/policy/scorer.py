"""Numbers read off the terms of packed trees under fixed weights: those of an adapter, of the bare model, of a teacher.

Nothing has a gradient here. Weights are those of a `PolicyModel`, which need not be the one that learns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..tokens import PackedTrees
from .model import PolicyModel
from .tree_pass import ChunkTerms, TreePass


@dataclass(frozen=True)
class Likeliest:
    """The likeliest tokens in the state that each of S terms was sampled in."""

    tokens_SK: Tensor | None
    """Their ids; None where these are all tokens of the vocabulary, in their order."""
    logprobs_SK: Tensor
    """Their log-probabilities (float32)."""


class Scorer:
    """Passes without a gradient over packed trees."""

    def __init__(self, model: PolicyModel, adapter: str | None, *, max_tokens: int, head_rows: int) -> None:
        """
        Args:
            adapter: the one that computes; None is the bare model.
            max_tokens: packed tokens of a pass, at most.
            head_rows: positions whose logits exist at once, at most.
        """
        self._model = model
        self._adapter = adapter
        self._max_tokens = max_tokens
        self._head_rows = head_rows

    def logprobs(self, packed: PackedTrees) -> Tensor:
        """Return log-probabilities [S] of the terms' tokens."""
        return self.each_term(packed, lambda chunk: chunk.logprobs_N)

    @torch.no_grad()
    def likeliest(self, packed: PackedTrees, count: int) -> Likeliest:
        """Return the `count` likeliest tokens of each term's state, at the temperature it was sampled at; 0 is the
        whole vocabulary. On the CPU, where the memory is: 4 bytes for each number, and 8 for each id."""
        model, whole = self._model, count == 0 or count >= self._model.vocab_size
        width = model.vocab_size if whole else count
        logprobs_SK = torch.empty(packed.term_count, width)
        tokens_SK = None if whole else torch.empty(packed.term_count, width, dtype=torch.long)

        def on_terms(chunk: ChunkTerms) -> None:
            terms_N = torch.from_numpy(chunk.terms_N)
            temperature_N = torch.from_numpy(packed.temperature_S[chunk.terms_N]).to(chunk.hidden_TM.device)
            for start in range(0, terms_N.numel(), self._head_rows):
                block = slice(start, start + self._head_rows)
                logits_NV = model.logits(chunk.hidden_TM[chunk.at_N[block]]).float() / temperature_N[block, None]
                found_NK = logits_NV.log_softmax(-1)
                if tokens_SK is not None:
                    found_NK, ids_NK = found_NK.topk(width, dim=-1)
                    tokens_SK[terms_N[block]] = ids_NK.cpu()
                logprobs_SK[terms_N[block]] = found_NK[:, :width].cpu()

        self._run(packed, on_terms)
        return Likeliest(tokens_SK, logprobs_SK)

    @torch.no_grad()
    def each_term(self, packed: PackedTrees, read: Callable[[ChunkTerms], Tensor]) -> Tensor:
        """Return the numbers [S] that `read` gives for the terms of each chunk."""
        found_S = torch.empty(packed.term_count, device=self._model.device)

        # Chunks come in the order of the trees, and each holds the terms that it predicts.
        def on_terms(chunk: ChunkTerms) -> None:
            found_S[torch.from_numpy(chunk.terms_N).to(found_S.device)] = read(chunk)

        self._run(packed, on_terms)
        return found_S

    def _run(self, packed: PackedTrees, on_terms: Callable[[ChunkTerms], None]) -> None:
        model = self._model
        model.base.eval()
        with model.using(self._adapter):
            TreePass(model, packed, max_tokens=self._max_tokens, head_rows=self._head_rows).run(on_terms)
