"""A reward model ready to score: its weights, its tokenizer, and the way in which batches go through it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_layers import GenericForSequenceClassification

from ...policy import PolicyError
from .packed_pass import PackedPass, agrees
from .padded_pass import PaddedPass
from .passes import Pass
from .rendering import Reading, Rendered, Renderer
from .settings import TextLimits

logger = logging.getLogger(__name__)

_BATCH_TOKENS_ON_CPU, _BATCH_TOKENS_ON_GPU = 2048, 16384
_PROBE_TOKENS = 12


class RewardModel:
    """Scores texts.

    Args:
        model: a sequence-classification model with one label; used as it is, not copied.
        tokenizer: its tokenizer.
        name: what it is called in answers.
        limits: how long a text may be.
        reading: how far the model reads a conversation.

    Raises:
        PolicyError: the model has more than one label, or reads fewer tokens than the limits ask for.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        name: str,
        limits: TextLimits | None = None,
        *,
        reading: Reading = "template",
    ) -> None:
        limits = limits or TextLimits()
        if model.config.num_labels != 1:
            raise PolicyError(f"--model {name!r} has {model.config.num_labels} labels, but a reward model has one")
        positions = model.config.get_text_config().max_position_embeddings
        if limits.max_length is not None and limits.max_length > positions:
            raise PolicyError(f"--max-length {limits.max_length}: --model {name!r} has {positions} positions only")
        self.name = name
        self.max_length: int = limits.max_length or positions
        self.renderer = Renderer(tokenizer, self.max_length, limits.truncation, reading)
        self.device: torch.device = model.device
        self.batch_tokens = _BATCH_TOKENS_ON_CPU if self.device.type == "cpu" else _BATCH_TOKENS_ON_GPU
        """Tokens of one pass, where nothing else is asked for."""
        model.eval().requires_grad_(False)
        self.batches: Pass = _pass_of(model)
        """How batches are made, and taken through the model."""

    @property
    def shares_prefixes(self) -> bool:
        """Whether texts that begin alike are computed together up to where they part."""
        return isinstance(self.batches, PackedPass)

    def scores(self, texts: Sequence[Rendered]) -> list[float]:
        """The scores of any number of texts, in order."""
        found = [0.0] * len(texts)
        for batch in self.batches.plan(texts, len(texts), self.batch_tokens):
            for item, score in zip(batch.items, self.batches.scores([texts[i] for i in batch.items]), strict=True):
                found[item] = score
        return found


def _pass_of(model: PreTrainedModel) -> Pass:
    """By token trees where the model gives the same scores so as by its own forward pass, else with padding."""
    padded = PaddedPass(model)
    if not isinstance(model, GenericForSequenceClassification):
        return padded
    probe = _probe(model.config.get_text_config())
    tolerance = 1e-4 if model.dtype == torch.float32 else 5e-2
    if agrees(model, probe, padded.scores(probe), tolerance):
        return PackedPass(model)
    logger.info(
        "%s is scored in padded batches: its layers mix tokens in a way that trees do not", type(model).__name__
    )
    return padded


def _probe(config: Any) -> list[Rendered]:
    """Texts of different lengths, two of which begin alike, from all over the vocabulary."""
    vocabulary, padding = config.vocab_size, config.pad_token_id
    ids = [id_ for id_ in range(0, vocabulary, max(1, vocabulary // (4 * _PROBE_TOKENS))) if id_ != padding]
    first = ids[:_PROBE_TOKENS]
    return [
        Rendered(tuple(first)),
        Rendered((*first[: _PROBE_TOKENS // 2], *reversed(ids))),
        Rendered(tuple(reversed(first))[:5]),
    ]
