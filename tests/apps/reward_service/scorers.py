"""Reward models small enough for a test, and what plain transformers says of a text."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForSequenceClassification

from mini_agentic_rl.apps.reward_service import RewardModel, ScoreServer, TextLimits
from mini_agentic_rl.apps.reward_service.rendering import Rendered
from mini_agentic_rl.apps.reward_service.reward_model import ScoringBatch
from tiny import tiny_tokenizer

SIZES = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}


def tiny_scorer(architecture: Any = LlamaForSequenceClassification, config: Any = LlamaConfig, **options: Any) -> Any:
    """A randomly initialised decoder with one score, in float32."""
    torch.manual_seed(0)
    settings = {**SIZES, "vocab_size": len(tiny_tokenizer()), "num_labels": 1, "pad_token_id": 3, **options}
    return architecture(config(**settings)).float().eval()


def reward_model(model: Any = None, *, reading: str = "template", **limits: Any) -> RewardModel:
    """`model`, or a tiny one, ready to score."""
    return RewardModel(model or tiny_scorer(), tiny_tokenizer(), "tiny", TextLimits(**limits), reading=reading)


@torch.no_grad()
def alone(model: Any, ids: Sequence[int]) -> float:
    """The score of one text by the model's own forward pass."""
    return float(model(input_ids=torch.tensor([list(ids)])).logits[0, 0])


class GatedPass:
    """Lets a batch begin only when the test says so, and keeps how many texts were in each, and how long they were."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.gate = threading.Event()
        self.begun = threading.Event()
        self.batches: list[int] = []
        self.lengths: list[list[int]] = []
        self.failure: Exception | None = None

    def plan(self, texts: Sequence[Rendered], batch_size: int, batch_tokens: int) -> list[ScoringBatch]:
        return self._inner.plan(texts, batch_size, batch_tokens)

    def scores(self, texts: Sequence[Rendered]) -> list[float]:
        self.batches.append(len(texts))
        self.lengths.append([len(text.ids) for text in texts])
        self.begun.set()
        assert self.gate.wait(30)
        if self.failure is not None:
            raise self.failure
        return self._inner.scores(texts)


@contextmanager
def gated_server(**options: Any) -> Iterator[tuple[ScoreServer, GatedPass]]:
    """A server whose batches wait for `gate`."""
    model = reward_model()
    gated = GatedPass(model.batches)
    model.batches = gated
    with ScoreServer(model, **options) as server:
        try:
            yield server, gated
        finally:
            gated.gate.set()
