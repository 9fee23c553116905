"""Measuring: the same agent, the same endpoint, greedy, and nothing is trained."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from ..gateway import ServedPolicy, ThinkingName, ToolFormatName, resources_with_upstreams
from ..logging import CountedCauses
from ..metrics import MetricsLogger
from ..policy import EngineSettings
from ..semconv import SAMPLING_SEED
from ..store import LightningStore
from ..types import Dataset, EnqueueRolloutRequest, RolloutConfig, RolloutMode
from .base import Algorithm
from .rollouts import Evaluation, count_unscored, refuse_failed, run_rollouts
from .seeds import derive_seed


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
    causes: CountedCauses | None = None,
) -> Evaluation:
    """Run the first `size` tasks, `samples` times each; a rollout is ended after `rollout_timeout` seconds, and why one
    failed is logged where it is not among the `causes` of the run yet."""
    count = len(dataset) if size is None else min(size, len(dataset))
    requests = [
        EnqueueRolloutRequest(
            input=dataset[index],
            mode=mode,
            resources_id=resources_id,
            config=RolloutConfig(timeout_seconds=rollout_timeout),
            metadata={"evaluation": name, SAMPLING_SEED: derive_seed(seed, "evaluation", index, sample)},
        )
        for index in range(count)
        for sample in range(samples)
    ]
    logger_.phase(f"evaluation: {name}", len(requests))
    finished = await run_rollouts(store, requests, logger_.advance)
    count_unscored(finished, causes=causes)
    return Evaluation(name, finished, samples)


@dataclass(eq=False, repr=False)
class Measure(Algorithm):
    """Evaluation alone."""

    model: Any = "embedded"
    """As `MiniGRPO`."""
    tokenizer: Any | None = None
    """Its tokenizer; None takes the one beside the model."""
    _: KW_ONLY
    samples: int = 1
    """Tries at each task."""
    temperature: float = 0.0
    """0 always takes the likeliest token."""
    max_new_tokens: int = 128
    """Bound of one model call."""
    seed: int = 0
    """Of the sampling."""
    rollout_timeout: float | None = 300.0
    """Seconds after which a rollout is ended and counts as wrong; None never does."""
    tool_format: ToolFormatName = "auto"
    """Format of tool calls; see `MiniLLMServer`."""
    thinking: ThinkingName = "auto"
    """Fate of earlier thoughts; see `MiniLLMServer`."""
    load_options: Mapping[str, Any] | None = None
    """Those of `load_model`: `adapter` is the folder of the adapter to measure; `adapters` and `fixed_adapters` are
    folders by the names under which the agents ask for them."""
    engine: EngineSettings | None = None
    """Sampling."""
    gateway_port: int = 0
    """Port of the endpoint that agents call; 0 takes a free one."""
    gateway_host: str | None = None
    """Address that it listens on; None takes what the runners need."""
    gateway_url: str | None = None
    """URL by which agents reach it, where that is not its address."""
    evaluations: Sequence[Evaluation] = field(default_factory=list, init=False)
    seconds: dict[str, float] = field(default_factory=dict, init=False)
    kernels: str | None = field(default=None, init=False)

    @property
    def evaluation(self) -> Evaluation | None:
        """The measurement; None before it was made."""
        return self.evaluations[-1] if self.evaluations else None

    @property
    def summary(self) -> Mapping[str, Any]:
        """`accuracy` (name, correct, count of the one measurement), `seconds` by phase, `kernels` (`PolicyModel`)."""
        rows = [{"name": one.name, "correct": sum(one.correct), "count": len(one.rollouts)} for one in self.evaluations]
        return {"accuracy": rows, "seconds": dict(self.seconds), "kernels": self.kernels}

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Measure on `val_dataset`.

        Raises:
            ValueError: it is empty.
            PolicyError: the model or the adapter cannot be had.
            RunFailedError: all rollouts failed.
        """
        if val_dataset is None or len(val_dataset) == 0:
            raise ValueError("val_dataset is empty: there is nothing to measure on")
        sampling = {"temperature": self.temperature, "max_tokens": self.max_new_tokens}
        started = time.perf_counter()
        self.context.logger.phase("loading the model")
        served = await asyncio.to_thread(
            ServedPolicy.load, self.model, self.tokenizer, engine=self.engine, **(self.load_options or {})
        )
        self.kernels = served.policy.model.kernels
        try:
            await asyncio.to_thread(
                served.serve,
                store=self.context.store,
                host=self.gateway_host,
                port=self.gateway_port,
                public_url=self.gateway_url,
                tool_format=self.tool_format,
                thinking=self.thinking,
            )
            loaded = time.perf_counter()
            held, proxy = self.context.initial_resources, self.context.llm_proxy
            async with resources_with_upstreams(
                held, proxy, self.context.store, served.model_names, served.put_behind
            ) as initial:
                resources = await self.context.store.add_resources(served.resources(initial, sampling))
                evaluation = await evaluate(
                    self.context.store,
                    val_dataset,
                    name=served.name,
                    resources_id=resources.resources_id,
                    logger_=self.context.logger,
                    samples=self.samples,
                    mode="test",
                    seed=self.seed,
                    rollout_timeout=self.rollout_timeout,
                )
            refuse_failed(evaluation.rollouts)
            self.evaluations = [evaluation]
            self.seconds = {"load": loaded - started, "evaluation": time.perf_counter() - loaded}
        finally:
            await asyncio.to_thread(served.close)
