"""Two ways of taking batches through a reward model: padded rows, and token trees that compute shared beginnings once.

`PaddedPass` fits every sequence-classification model. `PackedPass` is for decoders, and only for those that give the
same scores by it; `reward_model.py` asks `trees_agree` before it uses it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from ...policy import ATTENTION_NAME, KeptKeys, ThreadCount, TreeTables
from ...tokens import CompletionRecord, TokenTree, cut, pack
from .rendering import Rendered


@dataclass(frozen=True)
class ScoringBatch:
    """Texts that go through the model together."""

    items: tuple[int, ...]
    """Their places in what was planned."""
    tokens: int
    """Tokens that are computed, padding among them."""


class ScoringPass(Protocol):
    """One way of taking batches through a reward model."""

    def plan(self, texts: Sequence[Rendered], batch_size: int, batch_tokens: int) -> list[ScoringBatch]:
        """Put `texts` into batches of at most `batch_size` texts and `batch_tokens` tokens. A text with more tokens
        than that is alone in its batch."""

    def scores(self, texts: Sequence[Rendered]) -> list[float]:
        """Score one batch."""


class PaddedPass:
    """Score rows of one length, padded on the right, by the model's own forward pass.

    Right is the side on which padding changes nothing: positions count from the left, later tokens are hidden from
    earlier ones or masked, and a model that reads its score at the last token looks for the last that is no padding.

    Args:
        model: on its device, in evaluation mode.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._threads = ThreadCount()
        config = model.config.get_text_config()
        self._pad_id: int | None = config.pad_token_id
        self._vocabulary: int = config.vocab_size
        self._with_segments = getattr(model.config, "type_vocab_size", 0) > 1

    def plan(self, texts: Sequence[Rendered], batch_size: int, batch_tokens: int) -> list[ScoringBatch]:
        """Put texts of like length together, the shortest first."""
        batches: list[ScoringBatch] = []
        current: list[int] = []
        for item in sorted(range(len(texts)), key=lambda item: len(texts[item].ids)):
            width = len(texts[item].ids)
            if current and (len(current) == batch_size or width * (len(current) + 1) > batch_tokens):
                batches.append(_padded(current, texts))
                current = []
            current.append(item)
        return [*batches, _padded(current, texts)] if current else batches

    @torch.no_grad()
    def scores(self, texts: Sequence[Rendered]) -> list[float]:
        """Return the scores, in order."""
        self._threads.adapt()
        width = max(len(text.ids) for text in texts)
        pad_id = _unused(texts, self._vocabulary) if self._pad_id is None else self._pad_id
        inputs: dict[str, Any] = {
            "input_ids": _rows([text.ids for text in texts], width, pad_id),
            "attention_mask": _rows([(1,) * len(text.ids) for text in texts], width, 0),
        }
        if self._with_segments:
            inputs["token_type_ids"] = _rows([text.segments or (0,) * len(text.ids) for text in texts], width, 0)
        device = self._model.device
        with self._padding_is(pad_id):
            logits_B1 = self._model(**{name: rows.to(device) for name, rows in inputs.items()}).logits
        found: list[float] = logits_B1[:, 0].float().tolist()
        return found

    @contextmanager
    def _padding_is(self, pad_id: int) -> Iterator[None]:
        """Tell a model that knows no padding of this one, for the duration of a block."""
        config = self._model.config.get_text_config()
        config.pad_token_id = pad_id
        try:
            yield
        finally:
            config.pad_token_id = self._pad_id


def _unused(texts: Sequence[Rendered], vocabulary: int) -> int:
    """Return a padding id for a model that has none.

    It stands in no text of the batch: the score is then read at the true last token of each, as it is for a text alone.
    """
    used = {id_ for text in texts for id_ in text.ids}
    return next(id_ for id_ in range(vocabulary) if id_ not in used)


def _padded(items: Sequence[int], texts: Sequence[Rendered]) -> ScoringBatch:
    return ScoringBatch(tuple(items), len(items) * max(len(texts[item].ids) for item in items))


def _rows(rows: Sequence[Sequence[int]], width: int, filler: int) -> torch.Tensor:
    return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows])


_CHUNK_ON_CPU, _CHUNK_ON_GPU = 512, 2048
"""Tokens of one forward pass. Within one, the attention's cost grows with the square of the largest subtree."""


class PackedPass:
    """Score by a decoder with one linear layer as its head, without padding.

    The texts are grown into a token tree, as trajectories are for learning, and go through the backbone with the tree's
    attention: answers to one prompt share the prompt, and all conversations share what the template puts first. The
    score is read at each text's last token.

    Args:
        model: on its device, in evaluation mode, with `score` on top of its backbone.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._threads = ThreadCount()
        self._backbone: nn.Module = getattr(model, model.base_model_prefix)
        self._head: nn.Module = model.get_submodule("score")
        self._pad_id: int | None = model.config.get_text_config().pad_token_id
        self._chunk_tokens = _CHUNK_ON_CPU if model.device.type == "cpu" else _CHUNK_ON_GPU

    def plan(self, texts: Sequence[Rendered], batch_size: int, batch_tokens: int) -> list[ScoringBatch]:
        """Put texts that begin alike together: in the order of their ids, each adds what it does not share with the
        one before it."""
        batches: list[ScoringBatch] = []
        current: list[int] = []
        tokens = 0
        for item in sorted(range(len(texts)), key=lambda item: texts[item].ids):
            ids = texts[item].ids
            more = len(ids) - (_shared(texts[current[-1]].ids, ids) if current else 0)
            if current and (len(current) == batch_size or tokens + more > batch_tokens):
                batches.append(ScoringBatch(tuple(current), tokens))
                current, tokens, more = [], 0, len(ids)
            current.append(item)
            tokens += more
        return [*batches, ScoringBatch(tuple(current), tokens)] if current else batches

    @torch.no_grad()
    def scores(self, texts: Sequence[Rendered]) -> list[float]:
        """Return the scores, in order."""
        tree = TokenTree()
        for text in texts:
            tree.insert(_record(self._read(text)))
        packed = pack([tree])
        device = self._model.device
        tokens_T = torch.from_numpy(packed.tokens_T).to(device)
        positions_T = torch.from_numpy(packed.positions_T).to(device)
        last_B = packed.token_S  # one sampled token a text: its last
        found_B = np.empty(len(texts), np.float32)
        path: list[KeptKeys] = []
        for chunk in cut(packed, self._chunk_tokens):
            self._threads.adapt()
            while path and path[-1].chunk.reach <= chunk.start:  # no later chunk descends from it
                path.pop()
            own = slice(chunk.start, chunk.stop)
            kept = KeptKeys(chunk) if chunk.reach > chunk.stop else None
            hidden_TM = self._hidden(tokens_T[own], positions_T[own], TreeTables(packed, chunk, path, kept, device))
            if kept is not None:
                path.append(kept)
            here_N = np.flatnonzero((last_B >= chunk.start) & (last_B < chunk.stop))
            rows_N = torch.from_numpy(last_B[here_N] - chunk.start).to(device)
            found_B[here_N] = self._head(hidden_TM[rows_N])[:, 0].float().cpu().numpy()
        return [float(score) for score in found_B]

    def _hidden(self, tokens_T: torch.Tensor, positions_T: torch.Tensor, tables: TreeTables) -> torch.Tensor:
        output = self._backbone(
            input_ids=tokens_T[None], position_ids=positions_T[None], use_cache=False, attention_tables=tables
        )
        hidden_TM: torch.Tensor = output.last_hidden_state[0]
        return hidden_TM

    def _read(self, text: Rendered) -> tuple[int, ...]:
        """Return the ids up to the one at which the score is read: transformers' decoders take the last that is not the
        padding token, also where a text ends with that token as its end of turn."""
        ids = text.ids
        end = len(ids)
        while end > 2 and ids[end - 1] == self._pad_id:
            end -= 1
        return ids[:end]


def trees_agree(model: PreTrainedModel, texts: Sequence[Rendered], expected: Sequence[float], tolerance: float) -> bool:
    """Let `model` attend by token trees and return True if it gives the `expected` scores of `texts` so; else leave it
    as it was.

    Layers that mix tokens by other means than attention (state-space models, linear attention) or weigh them in ways
    that the tree's attention does not know (sinks) do not.
    """
    before: str = model.config._attn_implementation
    model.set_attn_implementation(ATTENTION_NAME)
    same = False
    with contextlib.suppress(Exception):  # an architecture that cannot be called so keeps its own forward pass
        same = np.allclose(PackedPass(model).scores(texts), expected, rtol=tolerance, atol=tolerance)
    if not same:
        model.set_attn_implementation(before)
    return same


def _record(ids: Sequence[int]) -> CompletionRecord:
    """Return the text as a call whose one sampled token is the last, so that packing tells where that token is."""
    array = np.array(ids, np.int64)
    return CompletionRecord(array[:-1], array[-1:], np.zeros(1, np.float32))


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens at the beginning both have."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
