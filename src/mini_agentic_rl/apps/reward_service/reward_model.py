"""A loaded reward model, and the two ways of running a batch: padded rows or a token tree."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from peft import PeftModel
from torch import nn
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModelForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_layers import GenericForSequenceClassification

from ...errors import first_line
from ...gateway import load_tokenizer
from ...logging import only_errors_of
from ...policy import (
    ATTENTION_NAME,
    Dtype,
    KeptKeys,
    ModelNotFoundError,
    PolicyError,
    ThreadCount,
    TreeTables,
    adapter_folder,
    resolve_device,
    resolve_dtype,
    resolve_model,
)
from ...post_training.models import load_reward_model, run_file_of
from ...tokens import CompletionRecord, TokenTree, cut, pack
from .rendering import Reading, Rendered, Renderer, TextLimits

# Two forward passes: padded rows, and token trees that compute shared prefixes once.
#
# `PaddedPass` fits every sequence-classification model. `PackedPass` is for decoders whose scores are the same by it,
# which `trees_agree` checks.


@dataclass(frozen=True)
class ScoringBatch:
    """Texts that go through the model together."""

    items: tuple[int, ...]
    """Indices of the planned texts."""
    tokens: int
    """Tokens that are computed, padding among them."""


class ScoringPass(Protocol):
    """A way to run a batch through a reward model."""

    def plan(self, texts: Sequence[Rendered], batch_size: int, batch_tokens: int) -> list[ScoringBatch]:
        """Put `texts` into batches of at most `batch_size` texts and `batch_tokens` tokens. A text with more tokens
        than that is alone in its batch."""

    def scores(self, texts: Sequence[Rendered]) -> list[float]:
        """Score one batch."""


class PaddedPass:
    """Score rows of one length, padded on the right, by the model's own forward pass.

    Padding on the right changes no score: positions count from the left, padding is masked, and a model that reads its
    score at the last token takes the last one that is no padding.

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
        pad_id = self._pad_id
        if pad_id is None:  # an id that no text contains, so that the score is read at the last token of each text
            used = {id_ for text in texts for id_ in text.ids}
            pad_id = next(id_ for id_ in range(self._vocabulary) if id_ not in used)
        inputs: dict[str, Any] = {
            "input_ids": _rows([text.ids for text in texts], width, pad_id),
            "attention_mask": _rows([(1,) * len(text.ids) for text in texts], width, 0),
        }
        if self._with_segments:
            inputs["token_type_ids"] = _rows([text.segments or (0,) * len(text.ids) for text in texts], width, 0)
        config = self._model.config.get_text_config()
        config.pad_token_id = pad_id
        try:
            logits_B1 = self._model(**{name: rows.to(self._model.device) for name, rows in inputs.items()}).logits
        finally:
            config.pad_token_id = self._pad_id
        scores: list[float] = logits_B1[:, 0].float().tolist()
        return scores


def _padded(items: Sequence[int], texts: Sequence[Rendered]) -> ScoringBatch:
    return ScoringBatch(tuple(items), len(items) * max(len(texts[item].ids) for item in items))


def _rows(rows: Sequence[Sequence[int]], width: int, filler: int) -> torch.Tensor:
    return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows])


_CHUNK_ON_CPU, _CHUNK_ON_GPU = 512, 2048
"""Tokens of one forward pass. Within one, the attention's cost grows with the square of the largest subtree."""


class PackedPass:
    """Score by a decoder with one linear layer as its head, without padding.

    The texts form a token tree, as trajectories do in training, and run through the backbone with tree attention:
    answers to a prompt share the prompt, and all conversations share the beginning of the template. The score is read
    at each text's last token.

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
        """Put texts with a common prefix together: in the order of their ids, each adds the tokens that it does not
        share with the previous one."""
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
        scores_B = np.empty(len(texts), np.float32)
        path: list[KeptKeys] = []
        for chunk in cut(packed, self._chunk_tokens):
            self._threads.adapt()
            while path and path[-1].chunk.reach <= chunk.start:  # no later chunk descends from it
                path.pop()
            part = slice(chunk.start, chunk.stop)
            kept = KeptKeys(chunk) if chunk.reach > chunk.stop else None
            hidden_TM = self._hidden(tokens_T[part], positions_T[part], TreeTables(packed, chunk, path, kept, device))
            if kept is not None:
                path.append(kept)
            here_N = np.flatnonzero((last_B >= chunk.start) & (last_B < chunk.stop))
            rows_N = torch.from_numpy(last_B[here_N] - chunk.start).to(device)
            scores_B[here_N] = self._head(hidden_TM[rows_N])[:, 0].float().cpu().numpy()
        return [float(score) for score in scores_B]

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
    """Switch `model` to tree attention and return True if it then gives the `expected` scores; else switch back.

    Layers that mix tokens without attention (state-space models, linear attention) or with attention sinks give other
    scores.
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
    """Return the text as a call whose only sampled token is the last, so that packing returns its position."""
    array = np.array(ids, np.int64)
    return CompletionRecord(array[:-1], array[-1:], np.zeros(1, np.float32))


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(left), len(right)))


logger = logging.getLogger(__name__)


_BATCH_TOKENS_ON_CPU, _BATCH_TOKENS_ON_GPU = 2048, 16384
_PROBE_TOKENS = 12


class RewardModel:
    """Score texts.

    Args:
        model: a sequence-classification model with one label; used as it is, not copied.
        tokenizer: its tokenizer.
        name: its name in answers.
        limits: bounds on the length of a text.
        reading: part of a conversation that the model reads.

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
        """Default number of tokens of one pass."""
        model.eval().requires_grad_(False)
        self.batches: ScoringPass = _pass_of(model)
        """Plans batches and scores them."""

    @property
    def shares_prefixes(self) -> bool:
        """True if common prefixes of texts are computed once."""
        return isinstance(self.batches, PackedPass)

    def scores(self, texts: Sequence[Rendered]) -> list[float]:
        """Return the scores of any number of texts, in order."""
        scores = [0.0] * len(texts)
        for batch in self.batches.plan(texts, len(texts), self.batch_tokens):
            for item, score in zip(batch.items, self.batches.scores([texts[i] for i in batch.items]), strict=True):
                scores[item] = score
        return scores


def _pass_of(model: PreTrainedModel) -> ScoringPass:
    """Return a pass by token trees if the scores are those of the model's own forward pass, else one with padding."""
    padded = PaddedPass(model)
    if not isinstance(model, GenericForSequenceClassification):
        return padded
    probe = _probe(model.config.get_text_config())
    tolerance = 1e-4 if model.dtype == torch.float32 else 5e-2
    if trees_agree(model, probe, padded.scores(probe), tolerance):
        return PackedPass(model)
    logger.info(
        "%s is scored in padded batches: tree attention gives other scores for its layers", type(model).__name__
    )
    return padded


def _probe(config: Any) -> list[Rendered]:
    """Return texts of different lengths with ids from the whole vocabulary; two have a common prefix."""
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
    """Load a reward model. An adapter is merged into float32 weights, and not into others.

    Raises:
        PolicyError: it cannot be loaded, or is no reward model; the message names the setting to change.
    """
    if not model:
        raise PolicyError("give the folder of a reward model, e.g. what `reward` has trained", setting="model")
    if adapter_folder(model) is None:
        path = resolve_model(model)
        with _loading(model):
            config = AutoConfig.from_pretrained(path)
        _check_is_scorer(config, model)
        scorer_class = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING.get(type(config), None)
        if scorer_class is None or not issubclass(scorer_class, GenericForSequenceClassification):
            where = resolve_device(device)
            with _loading(model), only_errors_of("transformers"):
                tokenizer = load_tokenizer(path)
                encoder = AutoModelForSequenceClassification.from_pretrained(path, dtype=resolve_dtype(dtype, where))
            return RewardModel(encoder.to(where), tokenizer, model, limits, reading=_reading(model, tokenizer))
    loaded, tokenizer = load_reward_model(model, device, dtype)
    bare: Any = loaded
    if isinstance(loaded, PeftModel):
        bare = loaded.merge_and_unload() if bare.dtype == torch.float32 else loaded.get_base_model()
    return RewardModel(bare, tokenizer, model, limits, reading=_reading(model, tokenizer))


@contextmanager
def _loading(model: str) -> Iterator[None]:
    """Turn any error of a damaged checkpoint into a `ModelNotFoundError`."""
    try:
        yield
    except PolicyError:
        raise
    except Exception as error:
        raise ModelNotFoundError(
            f"{model!r} cannot be loaded: {first_line(error)} (give a local folder or a Hugging Face id)",
            setting="model",
        ) from error


def _check_is_scorer(config: PretrainedConfig, model: str) -> None:
    architectures = config.architectures or []
    if not any(name.endswith("ForSequenceClassification") for name in architectures):
        described = f"{' or '.join(architectures) or 'a model without a head'}, not a reward model"
    elif config.num_labels != 1:
        described = f"a classifier with {config.num_labels} labels, but a reward model has one"
    else:
        return
    raise PolicyError(f"{model!r} is {described}: train one with `mini-agentic-rl reward`", setting="model")


def _reading(model: str, tokenizer: Any) -> Reading:
    if run_file_of(Path(model).expanduser()) is not None:
        return "answer"
    return "template" if tokenizer.chat_template else "pair"
