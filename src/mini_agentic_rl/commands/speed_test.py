"""A speed test of about ten seconds, the settings that follow from it, and all checks of `doctor` without a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import torch

from ..errors import UserError
from ..metrics import number
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
from ..processes import CoreWatch, allowed_cores
from ..tokens import CompletionRecord, SamplingParams, TokenDelta, TokenRequest, TokenTree, pack
from .checkup import HARDWARE, INSTALLATION, Check, available_memory, ports
from .planning import plan_job
from .train_config import PlanSettings

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
        for index in range(_ROLLOUTS):
            self._begin(index)

    def _begin(self, index: int) -> None:
        prompt = (*self._system, *self._draw.integers(0, self._vocabulary, _PROMPT // 2).tolist())

        def on_delta(delta: TokenDelta) -> None:
            if delta.finish_reason in ("stop", "length") and not self._ended:
                self._begin(index)

        request = TokenRequest(prompt, SamplingParams(max_tokens=_LONGEST, seed=index))
        self._running[index] = self._engine.submit(request, on_delta)

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


_GB: Final = 10**9
_SMALL_CARD: Final = 6 * _GB
_LONG_STEP: Final = 180.0
"""Seconds of a step of `make train` above which fewer tasks a step show sooner whether it learns."""

_QUIET: Final = 0.75
"""Share of the cores that has to be free for the speed that was measured to be the computer's own."""


@dataclass(frozen=True)
class _Work:
    """Tokens of a part of `make train`, as a recorded run had them."""

    sampled: float = 0.0
    learned: float = 0.0

    def seconds(self, speed: Speed) -> float:
        return self.sampled / (_SAMPLING_SHARE * speed.sampled) + self.learned / (_LEARNING_SHARE * speed.learned)


_STEPS: Final = 20
_TASKS: Final = 8
_START_SECONDS: Final = 15.0
_SAMPLING_SHARE: Final = 0.6
"""Share of the speed test's rate that a run reaches: its batches run empty at their ends, and wait for agents."""
_LEARNING_SHARE: Final = 0.5
"""The same of learning: its chunks are cut where the tree forks, and steps are taken between them."""
_IMITATION: Final = _Work(sampled=2_800, learned=9_300)
"""16 batches of 4 conversations, about 580 tokens each, and a probe of 64 rollouts."""
_MEASUREMENTS: Final = _Work(sampled=40_000)
"""24,000 sampled tokens, which take longer there: the prompts of four calls are computed beside them."""
_STEP: Final = _Work(sampled=3_100, learned=2_700)
"""2,170 tokens of the tree are learned, and a quarter of them scored again."""


@dataclass(frozen=True)
class RecommendedOption:
    """A setting of `train`, and why."""

    setting: str
    value: str
    why: str


@dataclass(frozen=True)
class Recommendation:
    """Settings that follow from the checks."""

    options: Sequence[RecommendedOption]
    train_minutes: float | None
    """Of `make train`, without the installation; None where the speed was not measured."""

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"options": [asdict(one) for one in self.options], "train_minutes": self.train_minutes}


def recommend(
    speed: Speed | None, *, memory: int, free: float, card_memory: int | None, planned_peak: int
) -> Recommendation:
    """Return settings for a computer.

    Args:
        memory: bytes that are free.
        free: share of this process's cores that nobody else used during the speed test.
        card_memory: bytes of the card; None without one.
        planned_peak: bytes that the default settings of `train` are planned to take.
    """
    options = []
    if speed is not None:
        options.append(RecommendedOption("dtype", speed.dtype, "the fastest here, and what `auto` takes"))
    if card_memory is not None and card_memory <= _SMALL_CARD:
        options.append(RecommendedOption("preset", "4gb", "chooses what fits into the card's memory"))
    elif card_memory is None and memory < planned_peak:
        fits = f"{memory / _GB:.1f} GB are free and {planned_peak / _GB:.1f} GB are planned"
        options.append(RecommendedOption("preset", "4gb", f"{fits}; it chooses what takes less"))
    minutes = None
    if speed is not None:
        step = _STEP.seconds(speed)
        minutes = (_START_SECONDS + _IMITATION.seconds(speed) + _MEASUREMENTS.seconds(speed) + _STEPS * step) / 60
        if step > _LONG_STEP and free >= _QUIET:  # beside other work it is that work that is slow
            tasks = max(4, round(_TASKS * _LONG_STEP / step))
            why = f"a step of {_TASKS} would take {number(step)} s"
            options.append(RecommendedOption("tasks_per_step", str(tasks), why))
    return Recommendation(options, minutes)


def checkup(servers: Mapping[str, int], *, speed_test: bool = True) -> dict[str, Any]:
    """Return `installation` and `hardware` (checks), `speed` (None where it was not asked for, or failed),
    `recommendation`, and `faults`, the number of checks that found one.

    Args:
        servers: ports of the commands that serve, by their names.
    """
    installation = [*(check() for check in INSTALLATION), ports(servers)]
    hardware = [check() for check in HARDWARE]
    speed = None
    if speed_test:
        watch = CoreWatch()
        try:
            speed = measure_speed()
        except Exception as error:  # whatever fails here fails in a training too: it is what was looked for
            hardware.append(Check("Speed test", "fault", f"{type(error).__name__}: {error}"))
        free = watch.use().free / allowed_cores()
    else:
        free = 1.0
    found = recommend(
        speed, memory=available_memory(), free=free, card_memory=_card_memory(), planned_peak=_planned_peak()
    )
    checks = [*installation, *hardware]
    return {
        "installation": [check.as_json() for check in installation],
        "hardware": [check.as_json() for check in hardware],
        "speed": None if speed is None else speed.as_json(),
        "recommendation": found.as_json(),
        "faults": sum(check.state == "fault" for check in checks),
    }


def _card_memory() -> int | None:
    import torch

    return int(torch.cuda.get_device_properties(0).total_memory) if torch.cuda.is_available() else None


def _planned_peak() -> int:
    """Return the bytes that the default settings take; 0 where that cannot be planned without the model."""
    from ..policy import embedded_is_pulled

    if not embedded_is_pulled():
        return 0
    try:
        return int(plan_job(PlanSettings())["peak_bytes"])
    except UserError:
        return 0
