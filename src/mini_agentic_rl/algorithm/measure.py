"""Measuring: the same agent, the same endpoint, greedy, and nothing is trained.

`evaluate` runs tasks once; `Measure` is an evaluation alone; `Measuring` makes the measurements and validations of a
training run.

A validation is a greedy measurement before the first step, every `validation_every` steps, and after the last, on tasks
that are never trained on. The best weights are kept, of several alike the first: their checkpoint stays until the run
has ended. After `patience` validations in a row that were no better, the run ends. The score of the best weights on
these tasks is biased upwards, since they were chosen by it; held-out tasks measure the result.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

from ..gateway import GatewayLimits, ServedPolicy, resources_with_upstreams
from ..logging import CountedCauses
from ..metrics import counted, percent
from ..policy import EngineSettings
from ..processes import in_cancellable_thread
from ..semconv import SAMPLING_SEED
from ..types import Dataset, EnqueueRolloutRequest, NamedResources, RolloutConfig, RolloutMode
from .base import Algorithm, AlgorithmContext
from .checkpoint import Checkpointing, restore_weights
from .rollouts import OF_TRANSFER, Evaluation, answer_rows, count_reasons, refuse_failed, run_rollouts
from .settings import RolloutSettings
from .state import RunState
from .tasks import derive_seed

FIRST, LAST = "before", "after RL"
"""Names of the measurements at the beginning and at the end of a run."""
_TASKS_BEFORE: Final = 50
"""Maximum number of tasks of the measurement before a warm-up."""


async def evaluate(
    context: AlgorithmContext,
    settings: RolloutSettings,
    tasks: Dataset[Any],
    *,
    name: str,
    resources_id: str,
    size: int | None = None,
    samples: int = 1,
    mode: RolloutMode = "val",
    seed: int | None = None,
    causes: CountedCauses | None = None,
) -> Evaluation:
    """Run the first `size` tasks, `samples` times each; a rollout is ended after `rollout_timeout` seconds. The seed is
    that of the settings by default. Reasons of failures that are not among the `causes` of the run yet are logged."""
    seed = settings.seed if seed is None else seed
    requests = [
        EnqueueRolloutRequest(
            input=tasks[index],
            mode=mode,
            resources_id=resources_id,
            config=RolloutConfig(timeout_seconds=settings.rollout_timeout),
            metadata={"evaluation": name, SAMPLING_SEED: derive_seed(seed, "evaluation", index, sample)},
        )
        for index in range(min(size or len(tasks), len(tasks)))
        for sample in range(samples)
    ]
    context.logger.phase(f"evaluation: {name}", len(requests))
    finished = await run_rollouts(context.store, requests, context.logger.advance)
    count_reasons(finished, lambda rollout: rollout.without_call, "are measured by their reward alone", causes)
    count_reasons(finished, lambda rollout: rollout.unscored, "count as wrong", causes)
    return Evaluation(name, finished, samples)


@asynccontextmanager
async def serving(
    context: AlgorithmContext,
    options: RolloutSettings,
    load: Callable[[], ServedPolicy],
    *,
    limits: GatewayLimits | None = None,
    keep_open: bool = False,
) -> AsyncIterator[tuple[ServedPolicy, NamedResources]]:
    """Load a policy, serve it to the runners, and close it after the block; yield it, and the resources that agents
    find beside it.

    Args:
        options: address of the endpoint, and how it reads tool calls and thoughts.
        keep_open: leave it open after the block; where the block is not reached, it is closed all the same.

    Raises:
        PolicyError: the model or an adapter cannot be loaded.
    """
    context.logger.phase("loading the model")
    served = await in_cancellable_thread(load)
    closes = True
    try:
        await asyncio.to_thread(
            served.serve,
            store=context.store,
            host=options.gateway_host,
            port=options.gateway_port,
            public_url=options.gateway_url,
            limits=limits,
            tool_format=options.tool_format,
            thinking=options.thinking,
        )
        held, proxy = context.initial_resources, context.llm_proxy
        async with resources_with_upstreams(
            held, proxy, context.store, served.model_names, served.put_behind
        ) as resources:
            closes = not keep_open
            yield served, resources
    finally:
        if closes:
            await asyncio.to_thread(served.close)


class Measure(Algorithm):
    """Evaluation alone.

    Args:
        model, tokenizer: as for `MiniGRPO`.
        samples: tries at each task.
        temperature: 0 always takes the likeliest token.
        load_options: those of `load_model`: `adapter` is the folder of the adapter to measure; `adapters` and
            `fixed_adapters` are folders by the names under which the agents ask for them.
        engine: sampling.
        rollouts: settings of `RolloutSettings` by name, such as `max_new_tokens`, `seed` and `gateway_port`.

    Raises:
        pydantic.ValidationError: a setting is out of its range or has no such name.
    """

    def __init__(
        self,
        model: Any = "embedded",
        tokenizer: Any | None = None,
        *,
        samples: int = 1,
        temperature: float = 0.0,
        load_options: Mapping[str, Any] | None = None,
        engine: EngineSettings | None = None,
        **rollouts: Any,
    ) -> None:
        super().__init__()
        self._load = partial(ServedPolicy.load, model, tokenizer, engine=engine, **(load_options or {}))
        self._samples = samples
        self._temperature = temperature
        self._rollouts = RolloutSettings(**rollouts)
        self.evaluations: Sequence[Evaluation] = []
        self.seconds: dict[str, float] = {}
        self.kernels: str | None = None

    @property
    def evaluation(self) -> Evaluation | None:
        """The measurement; None before it was made."""
        return self.evaluations[-1] if self.evaluations else None

    @property
    def summary(self) -> Mapping[str, Any]:
        """`accuracy` (name, correct, count of the one measurement), `seconds` by phase, `kernels` (`PolicyModel`)."""
        rows = [{"name": e.name, "correct": sum(e.correct), "count": len(e.rollouts)} for e in self.evaluations]
        return {"accuracy": rows, "seconds": dict(self.seconds), "kernels": self.kernels}

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Measure on `val_dataset`.

        Raises:
            ValueError: it is empty.
            PolicyError: the model or the adapter cannot be loaded.
            RunFailedError: all rollouts failed.
        """
        if val_dataset is None or len(val_dataset) == 0:
            raise ValueError("val_dataset is empty: there is nothing to measure on")
        started = time.perf_counter()
        async with serving(self.context, self._rollouts, self._load) as (served, beside):
            self.kernels = served.policy.model.kernels
            loaded = time.perf_counter()
            sampling = {"temperature": self._temperature, "max_tokens": self._rollouts.max_new_tokens}
            resources = await self.context.store.add_resources(served.resources(beside, sampling))
            evaluation = await evaluate(
                self.context,
                self._rollouts,
                val_dataset,
                name=served.name,
                resources_id=resources.resources_id,
                samples=self._samples,
                mode="test",
            )
            refuse_failed(evaluation.rollouts)
            self.evaluations = [evaluation]
            self.seconds = {"load": loaded - started, "evaluation": time.perf_counter() - loaded}


class Measuring:
    """Runs held-out tasks with the current weights of a run, and keeps the results in its progress."""

    def __init__(self, run: RunState, checkpointing: Checkpointing) -> None:
        self._run = run
        self._checkpointing = checkpointing

    async def measure(self, name: str) -> None:
        """Measure the accuracy on the held-out tasks; at the beginning and at the end on those of the transfer too."""
        run = self._run
        if run.val_dataset is not None and len(run.val_dataset) > 0:
            size, resources_id = run.settings.eval_size, run.val_resources
            if name == FIRST and run.warms_up:
                # The accuracy of rewards is that after the warm-up. This measurement shows whether the model can do
                # the task at all: answers may be longer, and there are fewer tasks so that it takes as long.
                size = min(len(run.val_dataset), size or len(run.val_dataset), _TASKS_BEFORE)
                resources_id = run.long_answer_resources
            await self._measure_tasks("accuracy", name, run.val_dataset, size, resources_id)
        if run.transfer is not None and name in (FIRST, LAST):
            name = f"{name}{OF_TRANSFER}"
            await self._measure_tasks("transfer/accuracy", name, run.transfer, None, run.val_resources)

    async def measure_once(self, name: str) -> bool:
        """Measure, unless that was done before an interruption; return False then."""
        if any(row["name"] == name for row in self._run.progress.accuracy):
            return False
        await self.measure(name)
        return True

    async def measure_between(self) -> None:
        """Measure if that is due after the steps so far, and was not done."""
        run = self._run
        step, every = run.progress.step, run.settings.eval_every
        is_due = every > 0 and 0 < step < run.total_steps and step % every == 0
        if is_due and await self.measure_once(f"step {step}"):
            run.show_steps()

    async def validate(self) -> None:
        """Validate if that is due, and write a checkpoint of the weights that are the best so far."""
        run = self._run
        progress, settings, tasks = run.progress, run.settings, run.validation
        is_due = progress.step % settings.validation_every == 0 or progress.step == run.total_steps
        if tasks is None or not is_due or any(row["step"] == progress.step for row in progress.validation):
            return
        name = f"validation, step {progress.step}"
        evaluation = await self._run_tasks("validation", name, tasks, settings.validation_size, run.val_resources)
        progress.validation.append(
            {"step": progress.step, "correct": sum(evaluation.correct), "count": len(evaluation.rollouts)}
        )
        run.log({"validation/accuracy": evaluation.accuracy})
        best = progress.best_validation
        if best is not None and best["step"] == progress.step:
            await self._checkpointing.write()
        run.show_steps()

    @property
    def is_stalled(self) -> bool:
        """True if so many validations after the best one were no better that the run ends."""
        validations, patience = self._run.progress.validation, self._run.settings.patience
        if not validations or patience is None:
            return False
        shares = [row["correct"] / max(1, row["count"]) for row in validations]
        return len(shares) - 1 - shares.index(max(shares)) >= patience

    async def take_best(self) -> None:
        """Take back the weights that were validated best."""
        run = self._run
        best = run.progress.best_validation
        if best is None:
            return
        if best["step"] != run.progress.step:
            checkpoints = run.context.checkpoints
            folder = None if checkpoints is None else dict(checkpoints.checkpoints()).get(best["step"])
            if folder is None:
                run.logger.note("the last weights are kept: the checkpoint of the best validated ones is missing")
                return
            await run.policy.run_async(lambda: restore_weights(folder, run.policy, run.objective.learners))
        run.logger.note(outcome(best, run.progress.validation, run.progress.step, run.total_steps))

    async def _measure_tasks(
        self, metric: str, name: str, tasks: Dataset[Any], size: int | None, resources_id: str
    ) -> None:
        """Measure tasks, and keep answers and accuracy, which is logged under `metric`."""
        run = self._run
        evaluation = await self._run_tasks("evaluation", name, tasks, size, resources_id)
        run.evaluations.append(evaluation)
        if run.context.checkpoints is not None:
            rows = await asyncio.to_thread(answer_rows, evaluation, run.progress.step)
            run.context.checkpoints.save_answers(rows, [str(row["name"]) for row in run.progress.accuracy])
        run.progress.accuracy.append(
            {"name": name, "correct": sum(evaluation.correct), "count": len(evaluation.rollouts)}
        )
        run.log({metric: evaluation.accuracy})

    async def _run_tasks(
        self, phase: str, name: str, tasks: Dataset[Any], size: int | None, resources_id: str
    ) -> Evaluation:
        """Run tasks with the weights as they are now; the time is that of `phase`."""
        run, started = self._run, time.perf_counter()
        await run.served.publish()
        evaluation = await evaluate(
            run.context, run.settings, tasks, name=name, resources_id=resources_id, size=size, causes=run.causes
        )
        run.progress.spend(phase, time.perf_counter() - started)
        return evaluation


def outcome(best: Mapping[str, Any], validations: Sequence[Mapping[str, Any]], step: int, total: int) -> str:
    """Return which weights are kept, and why the run ended before its last step if it did."""
    early = "" if step == total else f"stopped after step {step} of {total}: validation stalled; "
    share = percent(best["correct"] / max(1, best["count"]))
    kept = "the last weights are kept" if best["step"] == step else f"the weights of step {best['step']} are kept"
    return f"{early}{kept}, the best of {counted(len(validations), 'validation')} ({share} of {best['count']} tasks)"
