"""A speed test of some ten seconds: tokens sampled and learned a second, by the embedded model or one of its shape."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import torch

from ...policy import (
    EngineSettings,
    LearnerSettings,
    LoraSettings,
    LossInputs,
    LossOutputs,
    Policy,
    embedded_is_pulled,
    resolve_device,
    resolve_dtype,
)
from ...tokens import CompletionRecord, SamplingParams, TokenDelta, TokenRequest, TokenTree, pack

_ROLLOUTS: Final = 32
_PROMPT: Final = 160
_ANSWER: Final = 40
_LONGEST: Final = 256
_PATIENCE: Final = 300.0
_SHAPE: Final[dict[str, Any]] = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
}
"""That of the embedded model, SmolLM2-135M."""


@dataclass(frozen=True)
class Speed:
    """Rates that the test measured."""

    model: str
    dtype: str
    threads: int
    sampled: float
    """Tokens that were sampled in a second, by 32 rollouts at once."""
    learned: float
    """Packed tokens that were learned from in a second."""

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def measure_speed(seconds: float = 3.5, *, shape: dict[str, Any] | None = None) -> Speed:
    """Sample, then learn, for so many seconds each, after a warm-up.

    Args:
        shape: of a Llama with random weights; None takes the embedded model where it is here, else one of its shape.
    """
    device = resolve_device("auto")
    dtype = resolve_dtype("auto", device)
    model: Any = "embedded"
    name = "the embedded model"
    if shape is not None or not embedded_is_pulled():
        model, name = _random_model(shape or _SHAPE, dtype, device), "random weights of the embedded model's shape"
    options: dict[str, Any] = {"lora": LoraSettings(), "dtype": "auto", "device": "auto", "seed": 0}
    policy = Policy.load(model, engine=EngineSettings(), **options)
    try:
        sampled = _sampling_rate(policy, seconds)
        learned = policy.learn(lambda: _learning_rate(policy, seconds))
        return Speed(name, str(dtype).removeprefix("torch."), torch.get_num_threads(), sampled, learned)
    finally:
        policy.close()


def _random_model(shape: dict[str, Any], dtype: torch.dtype, device: torch.device) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**shape)).to(dtype).to(device)


def _sampling_rate(policy: Policy, seconds: float) -> float:
    """Return tokens a second while `_ROLLOUTS` are sampled at once; their prompts differ, but for the beginning."""
    load = _Load(policy)
    try:
        _wait_for(lambda: policy.engine.sampled_tokens >= 4 * _ROLLOUTS)  # prompts are read, and what is lazy is made
        before, started = policy.engine.sampled_tokens, time.perf_counter()
        time.sleep(seconds)
        return (policy.engine.sampled_tokens - before) / (time.perf_counter() - started)
    finally:
        load.end()


class _Load:
    """Keeps `_ROLLOUTS` requests running: where one ends the next begins."""

    def __init__(self, policy: Policy) -> None:
        self._engine = policy.engine
        self._draw = np.random.default_rng(0)
        self._vocabulary = policy.model.base.config.vocab_size
        self._system = self._draw.integers(0, self._vocabulary, _PROMPT // 2).tolist()
        self._running: dict[int, Any] = {}
        self._ended = False
        for number in range(_ROLLOUTS):
            self._begin(number)

    def _begin(self, number: int) -> None:
        prompt = (*self._system, *self._draw.integers(0, self._vocabulary, _PROMPT // 2).tolist())

        def on_delta(delta: TokenDelta) -> None:
            if delta.finish_reason in ("stop", "length") and not self._ended:
                self._begin(number)

        request = TokenRequest(prompt, SamplingParams(max_tokens=_LONGEST, seed=number))
        self._running[number] = self._engine.submit(request, on_delta)

    def end(self) -> None:
        """Cancel them."""
        self._ended = True
        for one in self._running.values():
            self._engine.cancel(one)


def _wait_for(ready: Callable[[], bool]) -> None:
    """Wait until something is so.

    Raises:
        TimeoutError: it is not after `_PATIENCE`.
    """
    end = time.monotonic() + _PATIENCE
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError(f"the model has sampled next to nothing in {_PATIENCE:.0f} s")
        time.sleep(0.01)


def _learning_rate(policy: Policy, seconds: float) -> float:
    """Return packed tokens a second of forward and backward passes; no step is taken."""
    draw = np.random.default_rng(0)
    vocabulary = policy.model.base.config.vocab_size
    tree = TokenTree()
    for _ in range(_ROLLOUTS // 8):
        prompt = draw.integers(0, vocabulary, _PROMPT)
        for _ in range(8):
            answer = draw.integers(0, vocabulary, _ANSWER)
            tree.insert(CompletionRecord(prompt, answer, np.zeros(_ANSWER, np.float32)), 0)
    packed = pack([tree])
    learner = policy.learner(LearnerSettings())

    def loss(inputs: LossInputs) -> LossOutputs:
        return LossOutputs(-inputs.logprobs_S.mean())

    learner.forward_backward(packed, loss)
    tokens, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        learner.forward_backward(packed, loss)
        tokens += packed.token_count
    return tokens / (time.perf_counter() - started)
