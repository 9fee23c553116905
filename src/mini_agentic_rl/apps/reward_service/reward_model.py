"""A reward model ready to score: its weights, its tokenizer, and the way in which batches go through it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModelForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_layers import GenericForSequenceClassification

from ...gateway import load_tokenizer
from ...logging import only_errors_of
from ...policy import (
    Dtype,
    ModelNotFoundError,
    PolicyError,
    adapter_folder,
    resolve_device,
    resolve_dtype,
    resolve_model,
)
from ...post_training.models import load_reward_model, run_file_of
from .passes import PackedPass, PaddedPass, ScoringPass, trees_agree
from .rendering import Reading, Rendered, Renderer
from .settings import TextLimits

logger = logging.getLogger(__name__)

_BATCH_TOKENS_ON_CPU, _BATCH_TOKENS_ON_GPU = 2048, 16384
_PROBE_TOKENS = 12


class RewardModel:
    """Score texts.

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
            raise PolicyError(
                f"{name!r} has {model.config.num_labels} labels, but a reward model has one", setting="model"
            )
        positions = model.config.get_text_config().max_position_embeddings
        if limits.max_length is not None and limits.max_length > positions:
            raise PolicyError(
                f"{limits.max_length} is more than the {positions} positions of {name!r}", setting="max_length"
            )
        self.name = name
        self.max_length: int = limits.max_length or positions
        self.renderer = Renderer(tokenizer, self.max_length, limits.truncation, reading)
        self.device: torch.device = model.device
        self.batch_tokens = _BATCH_TOKENS_ON_CPU if self.device.type == "cpu" else _BATCH_TOKENS_ON_GPU
        """Tokens of one pass, where nothing else is asked for."""
        model.eval().requires_grad_(False)
        self.batches: ScoringPass = _pass_of(model)
        """Makes batches, and takes them through the model."""

    @property
    def shares_prefixes(self) -> bool:
        """True if texts that begin alike are computed together up to where they part."""
        return isinstance(self.batches, PackedPass)

    def scores(self, texts: Sequence[Rendered]) -> list[float]:
        """Return the scores of any number of texts, in order."""
        found = [0.0] * len(texts)
        for batch in self.batches.plan(texts, len(texts), self.batch_tokens):
            for item, score in zip(batch.items, self.batches.scores([texts[i] for i in batch.items]), strict=True):
                found[item] = score
        return found


def _pass_of(model: PreTrainedModel) -> ScoringPass:
    """Return a pass by token trees where the model gives the same scores so as by its own forward pass, else one with
    padding."""
    padded = PaddedPass(model)
    if not isinstance(model, GenericForSequenceClassification):
        return padded
    probe = _probe(model.config.get_text_config())
    tolerance = 1e-4 if model.dtype == torch.float32 else 5e-2
    if trees_agree(model, probe, padded.scores(probe), tolerance):
        return PackedPass(model)
    logger.info(
        "%s is scored in padded batches: its layers mix tokens in a way that trees do not", type(model).__name__
    )
    return padded


def _probe(config: Any) -> list[Rendered]:
    """Return texts of different lengths, two of which begin alike, from all over the vocabulary."""
    vocabulary, padding = config.vocab_size, config.pad_token_id
    ids = [id_ for id_ in range(0, vocabulary, max(1, vocabulary // (4 * _PROBE_TOKENS))) if id_ != padding]
    first = ids[:_PROBE_TOKENS]
    return [
        Rendered(tuple(first)),
        Rendered((*first[: _PROBE_TOKENS // 2], *reversed(ids))),
        Rendered(tuple(reversed(first))[:5]),
    ]


def load_scorer(
    model: str, *, device: str = "auto", dtype: Dtype = "auto", limits: TextLimits | None = None
) -> RewardModel:
    """Load the reward model, ready to score. An adapter is added into float32 weights, and stays beside others.

    Raises:
        PolicyError: it cannot be loaded, or is no reward model; the message names the setting to change.
    """
    if not model:
        raise PolicyError("give the folder of a reward model, e.g. what `reward` has trained", setting="model")
    if adapter_folder(model) is None:
        path = resolve_model(model)
        config = _config(path, model)
        _check_is_scorer(config, model)
        if not _is_decoder(config):
            return _encoder(path, model, device, dtype, limits)
    found, tokenizer = load_reward_model(model, device, dtype)
    bare: Any = found
    if isinstance(found, PeftModel):
        bare = found.merge_and_unload() if bare.dtype == torch.float32 else found.get_base_model()
    return RewardModel(bare, tokenizer, model, limits, reading=_reading(model, tokenizer))


def _encoder(path: str, model: str, device: str, dtype: Dtype, limits: TextLimits | None) -> RewardModel:
    where = resolve_device(device)
    tokenizer = load_tokenizer(path)
    try:
        with only_errors_of("transformers"):
            found = AutoModelForSequenceClassification.from_pretrained(path, dtype=resolve_dtype(dtype, where))
    except Exception as error:  # of a damaged file it may be any
        raise _not_loaded(model, error) from error
    return RewardModel(found.to(where), tokenizer, model, limits, reading=_reading(model, tokenizer))


def _config(path: str, model: str) -> PretrainedConfig:
    try:
        return AutoConfig.from_pretrained(path)
    except Exception as error:  # of a damaged file it may be any
        raise _not_loaded(model, error) from error


def _check_is_scorer(config: PretrainedConfig, model: str) -> None:
    architectures = config.architectures or []
    if not any(name.endswith("ForSequenceClassification") for name in architectures):
        raise PolicyError(
            f"{model!r} is {' or '.join(architectures) or 'a model without a head'}, not a reward model: "
            "train one with `mini-agentic-rl reward`",
            setting="model",
        )
    if config.num_labels != 1:
        raise PolicyError(
            f"{model!r} tells {config.num_labels} labels apart, but a reward model has one: "
            "train one with `mini-agentic-rl reward`",
            setting="model",
        )


def _is_decoder(config: PretrainedConfig) -> bool:
    found = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING.get(type(config), None)
    return found is not None and issubclass(found, GenericForSequenceClassification)


def _reading(model: str, tokenizer: Any) -> Reading:
    if run_file_of(Path(model).expanduser()) is not None:
        return "answer"
    return "template" if tokenizer.chat_template else "pair"


def _not_loaded(model: str, error: Exception) -> ModelNotFoundError:
    first = str(error).strip().splitlines()[0]
    return ModelNotFoundError(
        f"{model!r} cannot be loaded: {first} (give a local folder or a Hugging Face id)", setting="model"
    )
