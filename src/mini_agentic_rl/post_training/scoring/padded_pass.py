"""Batches as transformers take them: rows of one length, padded on the right, through the model's own forward pass.

Right is the side on which padding changes nothing: positions count from the left, later tokens are hidden from earlier
ones or masked, and a model that reads its score at the last token looks for the last one that is not padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from .passes import Batch
from .rendering import Rendered


class PaddedPass:
    """Scores with any sequence-classification model of one label.

    Args:
        model: on its device, in evaluation mode.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        config = model.config.get_text_config()
        self._pad_id: int | None = config.pad_token_id
        self._vocabulary: int = config.vocab_size
        self._with_segments = getattr(model.config, "type_vocab_size", 0) > 1

    def plan(self, texts: Sequence[Rendered], batch_size: int, batch_tokens: int) -> list[Batch]:
        """Texts of like length together, the shortest first."""
        batches: list[Batch] = []
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
        """The scores, in order."""
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
    """A padding id for a model that has none. It stands in no text of the batch: the score is then read at the true
    last token of each, as it is for a text alone."""
    used = {id_ for text in texts for id_ in text.ids}
    return next(id_ for id_ in range(vocabulary) if id_ not in used)


def _padded(items: Sequence[int], texts: Sequence[Rendered]) -> Batch:
    return Batch(tuple(items), len(items) * max(len(texts[item].ids) for item in items))


def _rows(rows: Sequence[Sequence[int]], width: int, filler: int) -> torch.Tensor:
    return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows])
