"""The speed test of `doctor`: tokens sampled and learned per second on this computer, and the time of `make train`."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import torch

from ..config import cache_dir
from ..files import read_json, write_json
from ..policy import (
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
from ..tokens import CompletionRecord, SamplingParams, TokenDelta, TokenRequest, TokenTree, pack

_ROLLOUTS: Final = 32
_PROMPT_TOKENS: Final = 160
_ANSWER_TOKENS: Final = 40
_MAX_TOKENS: Final = 256
_WARM_UP_SECONDS: Final = 300.0
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
"""Shape of the embedded model, SmolLM2-135M."""


@dataclass(frozen=True)
class Speed:
    """Rates that the speed test measured."""

    model: str
    dtype: str
    threads: int
    sampled: float
    """Tokens sampled in a second by 32 rollouts at once."""
    learned: float
    """Packed tokens learned from in a second."""


def measure_speed(seconds: float = 3.5, *, shape: dict[str, Any] | None = None) -> Speed:
    """Sample, then learn, for `seconds` each, after a warm-up.

    Args:
        shape: configuration of a Llama with random weights; None takes the embedded model if it is pulled, else random
            weights of its shape.
    """
    device = resolve_device("auto")
    dtype = resolve_dtype("auto", device)
    model: Any = "embedded"
    name = "the embedded model"
    if shape is not None or not embedded_is_pulled():
        from transformers import LlamaConfig, LlamaForCausalLM

        model = LlamaForCausalLM(LlamaConfig(**(shape or _SHAPE))).to(dtype).to(device)
        name = "random weights of the embedded model's shape"
    policy = Policy.load(model, engine=EngineSettings(), lora=LoraSettings(), dtype="auto", device="auto", seed=0)
    try:
        sampled = _sampling_rate(policy, seconds)
        learned = policy.learn(lambda: _learning_rate(policy, seconds))
        return Speed(name, str(dtype).removeprefix("torch."), torch.get_num_threads(), sampled, learned)
    finally:
        policy.close()


def _sampling_rate(policy: Policy, seconds: float) -> float:
    """Return tokens a second while `_ROLLOUTS` requests run; where one ends, the next begins."""
    engine = policy.engine
    draw = np.random.default_rng(0)
    vocabulary = policy.model.base.config.vocab_size
    shared_prompt = draw.integers(0, vocabulary, _PROMPT_TOKENS // 2).tolist()
    running: dict[int, Any] = {}
    ended = False

    def begin(index: int) -> None:
        prompt = (*shared_prompt, *draw.integers(0, vocabulary, _PROMPT_TOKENS // 2).tolist())

        def on_delta(delta: TokenDelta) -> None:
            if delta.finish_reason in ("stop", "length") and not ended:
                begin(index)

        request = TokenRequest(prompt, SamplingParams(max_tokens=_MAX_TOKENS, seed=index))
        running[index] = engine.submit(request, on_delta)

    for index in range(_ROLLOUTS):
        begin(index)
    try:
        give_up = time.monotonic() + _WARM_UP_SECONDS
        while engine.sampled_tokens < 4 * _ROLLOUTS:  # until the prompts are computed and the kernels compiled
            if time.monotonic() > give_up:
                raise TimeoutError(f"the model sampled fewer than {4 * _ROLLOUTS} tokens in {_WARM_UP_SECONDS:.0f} s")
            time.sleep(0.01)
        before, started = engine.sampled_tokens, time.perf_counter()
        time.sleep(seconds)
        return (engine.sampled_tokens - before) / (time.perf_counter() - started)
    finally:
        ended = True
        for request in running.values():
            engine.cancel(request)


def _learning_rate(policy: Policy, seconds: float) -> float:
    """Return packed tokens a second of forward and backward passes; no optimizer step is taken."""
    draw = np.random.default_rng(0)
    vocabulary = policy.model.base.config.vocab_size
    tree = TokenTree()
    for _ in range(_ROLLOUTS // 8):
        prompt = draw.integers(0, vocabulary, _PROMPT_TOKENS)
        for _ in range(8):
            answer = draw.integers(0, vocabulary, _ANSWER_TOKENS)
            tree.insert(CompletionRecord(prompt, answer, np.zeros(_ANSWER_TOKENS, np.float32)), 0)
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


def save_speed(speed: Speed) -> None:
    """Keep the rates of this computer in the cache folder, for `plan`."""
    path = cache_dir() / "speed.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, asdict(speed))


def saved_speed(dtype: torch.dtype) -> Speed | None:
    """Return the saved rates of this computer; None if `doctor` has not measured this number of threads and type."""
    try:
        speed = Speed(**read_json(cache_dir() / "speed.json"))
    except (OSError, ValueError, TypeError):
        return None
    matches = (speed.dtype, speed.threads) == (str(dtype).removeprefix("torch."), torch.get_num_threads())
    return speed if matches and speed.sampled > 0 and speed.learned > 0 else None


_START_SECONDS: Final = 15.0
_SAMPLED_TOKENS: Final = 2_800 + 40_000 + 20 * 3_100
"""Tokens that the warm-up, the measurements and 20 steps of a recorded `make train` sampled. The measurements count
24,000 tokens as 40,000: the prompts of four calls are computed beside them."""
_LEARNED_TOKENS: Final = 9_300 + 20 * 2_700
"""Tokens that its warm-up and steps learned from; a step scores a quarter of its 2,170 tokens again."""
_SAMPLING_SHARE: Final = 0.6
"""Share of the speed test's rate that a run reaches: batches shrink towards their end, and wait for agents."""
_LEARNING_SHARE: Final = 0.5
"""The same for learning: its chunks are cut where the tree forks, and optimizer steps are taken between them."""


def minutes_of_train(speed: Speed) -> float:
    """Return the minutes that `make train` takes, without the installation."""
    sampling = _SAMPLED_TOKENS / (_SAMPLING_SHARE * speed.sampled)
    learning = _LEARNED_TOKENS / (_LEARNING_SHARE * speed.learned)
    return (_START_SECONDS + sampling + learning) / 60
