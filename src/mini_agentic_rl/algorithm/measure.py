"""Measuring: the same agent, the same endpoint, greedy, and nothing is trained."""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..gateway import ServedPolicy, ThinkingName, ToolFormatName, resources_with_upstreams
from ..metrics import MetricsLogger
from ..policy import EngineSettings
from ..store import LightningStore
from ..types import Dataset, EnqueueRolloutRequest, RolloutConfig, RolloutMode
from .base import Algorithm
from .rollouts import FinishedRollout, count_untrainable, run_rollouts
from .seeds import derive_seed


@dataclass(frozen=True)
class Evaluation:
    """Result of one measurement."""

    name: str
    rollouts: Sequence[FinishedRollout]
    """Problem by problem, `samples` of each together."""
    samples: int

    @property
    def rewards(self) -> list[float]:
        """One number a rollout. A failed one, one without a model call and one without a reward count as 0."""
        return [0.0 if finished.untrainable else finished.reward or 0.0 for finished in self.rollouts]

    @property
    def correct(self) -> list[int]:
        """For each problem the number of its samples that earned a reward of at least 1."""
        right = [reward >= 1.0 for reward in self.rewards]
        return [sum(right[i : i + self.samples]) for i in range(0, len(right), self.samples)]

    @property
    def accuracy(self) -> float:
        """Share of rollouts with a reward of at least 1."""
        return sum(self.correct) / max(1, len(self.rollouts))


async def evaluate(
    store: LightningStore,
    dataset: Dataset[Any],
    *,
    name: str,
    resources_id: str,
    logger_: MetricsLogger,
    size: int | None = None,
    samples: int = 1,
    mode: RolloutMode = "val",
    seed: int = 0,
    rollout_timeout: float | None = None,
) -> Evaluation:
    """Run the first `size` tasks, `samples` times each; a rollout is ended after `rollout_timeout` seconds."""
    count = len(dataset) if size is None else min(size, len(dataset))
    requests = [
        EnqueueRolloutRequest(
            input=dataset[index],
            mode=mode,
            resources_id=resources_id,
            config=RolloutConfig(timeout_seconds=rollout_timeout),
            metadata={"evaluation": name, "sampling_seed": derive_seed(seed, "evaluation", index, sample)},
        )
        for index in range(count)
        for sample in range(samples)
    ]
    logger_.phase(f"evaluation: {name}", len(requests))
    finished = await run_rollouts(store, requests, logger_.advance)
    count_untrainable(finished, "count as wrong")
    return Evaluation(name, finished, samples)


class Measure(Algorithm):
    """Evaluation alone.

    Args:
        model: as `MiniGRPO`.
        tokenizer: its tokenizer; None takes the one beside the model.
        samples: tries at each task.
        temperature: 0 always takes the likeliest token.
        max_new_tokens: bound of one model call.
        seed: of the sampling.
        rollout_timeout: seconds after which a rollout is ended and counts as wrong; None never does.
        tool_format: how tool calls are written; see `MiniLLMServer`.
        thinking: what becomes of thoughts; see `MiniLLMServer`.
        load_options: those of `load_model`: `adapter` is the folder of the adapter to measure; `adapters` and
            `fixed_adapters` are folders by the names under which the agents ask for them.
        engine: sampling.
    """

    def __init__(
        self,
        model: Any = "embedded",
        tokenizer: Any | None = None,
        *,
        samples: int = 1,
        temperature: float = 0.0,
        max_new_tokens: int = 128,
        seed: int = 0,
        rollout_timeout: float | None = 300.0,
        tool_format: ToolFormatName = "auto",
        thinking: ThinkingName = "auto",
        load_options: Mapping[str, Any] | None = None,
        engine: EngineSettings | None = None,
    ) -> None:
        super().__init__()
        self._model = model
        self._tokenizer = tokenizer
        self._samples = samples
        self._sampling = {"temperature": temperature, "max_tokens": max_new_tokens}
        self._seed = seed
        self._rollout_timeout = rollout_timeout
        self._tool_format: ToolFormatName = tool_format
        self._thinking: ThinkingName = thinking
        self._load_options = dict(load_options or {})
        self._engine = engine
        self.evaluation: Evaluation | None = None
        self.seconds: dict[str, float] = {}

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Measure on `val_dataset`.

        Raises:
            ValueError: it is empty.
            PolicyError: the model or the adapter cannot be had.
        """
        if val_dataset is None or len(val_dataset) == 0:
            raise ValueError("val_dataset is empty: there is nothing to measure on")
        started = time.perf_counter()
        self.context.logger.phase("loading the model")
        served = await asyncio.to_thread(
            ServedPolicy.load, self._model, self._tokenizer, engine=self._engine, **self._load_options
        )
        try:
            await asyncio.to_thread(
                served.serve, store=self.context.store, tool_format=self._tool_format, thinking=self._thinking
            )
            loaded = time.perf_counter()
            held, proxy = self.context.initial_resources, self.context.llm_proxy
            async with resources_with_upstreams(
                held, proxy, self.context.store, served.model_names, served.put_behind
            ) as initial:
                resources = await self.context.store.add_resources(served.resources(initial, self._sampling))
                self.evaluation = await evaluate(
                    self.context.store,
                    val_dataset,
                    name=served.name,
                    resources_id=resources.resources_id,
                    logger_=self.context.logger,
                    samples=self._samples,
                    mode="test",
                    seed=self._seed,
                    rollout_timeout=self._rollout_timeout,
                )
            self.seconds = {"load": loaded - started, "evaluation": time.perf_counter() - loaded}
        finally:
            await asyncio.to_thread(served.close)


def peak_memory_bytes() -> int:
    """Return the most memory (bytes) that this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
