"""The trainer puts the pieces together: store, runners, agent, hooks, algorithm. It has no logic of its own."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..algorithm.base import Algorithm, AlgorithmContext, Checkpoints
from ..algorithm.baseline import Baseline, FastAlgorithm
from ..algorithm.rollouts import cancel_leftovers
from ..execution import ExecutionEvent, ExecutionStrategy, SharedMemoryExecutionStrategy
from ..litagent import LitAgent
from ..metrics import MetricsLogger
from ..runner import LitAgentRunner
from ..store.base import LightningStore
from ..store.memory import InMemoryLightningStore
from ..tracer import Tracer
from ..types import Dataset, Hook, NamedResources
from .run_folder import RunFolder

logger = logging.getLogger(__name__)


class Trainer:
    """Runs an algorithm and its runners.

    Args:
        algorithm: what learns; None takes `MiniGRPO()` on the embedded model.
        agent: what is trained; may instead be given to `fit`.
        hooks: code around each rollout, in order.
        store: where rollouts and spans go; None takes SQLite in `output_dir`, or memory without one.
        n_runners: how many rollouts run at once.
        max_rollouts: a runner ends after this many; None never does.
        strategy: how runners are run; None runs them in this process.
        tracer: makes the spans.
        initial_resources: resources that the agent gets besides those of the algorithm.
        output_dir: folder of the run: checkpoints, adapter, rollouts. None writes nothing.
        logger: where metrics go.
        resume: go on from the latest checkpoint in `output_dir`.
        dev: `fit` does what `dev` does.

    Raises:
        ValueError: a setting that cannot work, by name.
    """

    def __init__(
        self,
        *,
        algorithm: Algorithm | None = None,
        agent: LitAgent[Any] | None = None,
        hooks: Hook | Sequence[Hook] = (),
        store: LightningStore | None = None,
        n_runners: int = 8,
        max_rollouts: int | None = None,
        strategy: ExecutionStrategy | None = None,
        tracer: Tracer | None = None,
        initial_resources: NamedResources | None = None,
        output_dir: str | Path | None = None,
        logger: MetricsLogger | None = None,
        resume: bool = False,
        dev: bool = False,
    ) -> None:
        if n_runners < 1:
            raise ValueError(f"n_runners must be 1 or more, not {n_runners}: without a runner no rollout is ever run")
        if resume and output_dir is None:
            raise ValueError("resume needs output_dir: the folder whose checkpoints to go on from")
        self.algorithm = algorithm
        self.agent = agent
        self.hooks = [hooks] if isinstance(hooks, Hook) else list(hooks)
        self.n_runners = n_runners
        self.max_rollouts = max_rollouts
        self.strategy = strategy or SharedMemoryExecutionStrategy(n_runners=n_runners)
        self.tracer = tracer
        self.initial_resources = dict(initial_resources or {})
        self.folder = None if output_dir is None else RunFolder(output_dir)
        self.store = store
        self.logger = logger or MetricsLogger()
        self.resume = resume
        self.is_dev = dev

    def fit(
        self,
        agent: LitAgent[Any] | Dataset[Any],
        train_dataset: Dataset[Any] | None = None,
        *,
        val_dataset: Dataset[Any] | None = None,
    ) -> None:
        """Train: `fit(agent, train_dataset, val_dataset=…)`, or `fit(train_dataset)` with the agent given before.

        Returns when the algorithm has ended. Not callable from inside a running event loop.

        Raises:
            ValueError: there is no agent.
            Exception: whatever the algorithm raised.
        """
        if isinstance(agent, LitAgent):
            chosen = agent
        elif self.agent is not None and train_dataset is None:
            chosen, train_dataset = self.agent, agent
        else:
            raise ValueError("no agent: use Trainer(agent=…).fit(dataset) or Trainer(…).fit(agent, dataset)")
        algorithm = self._algorithm()
        if self.is_dev and not isinstance(algorithm, FastAlgorithm):
            algorithm = Baseline()
        self._run(chosen, algorithm, train_dataset, val_dataset)

    def dev(
        self,
        agent: LitAgent[Any],
        train_dataset: Dataset[Any] | None = None,
        *,
        val_dataset: Dataset[Any] | None = None,
    ) -> None:
        """Try an agent out: as `fit` with the `Baseline`, or with the trainer's algorithm if that is a fast one."""
        algorithm = self.algorithm if isinstance(self.algorithm, FastAlgorithm) else Baseline()
        self._run(agent, algorithm, train_dataset, val_dataset)

    def _algorithm(self) -> Algorithm:
        if self.algorithm is None:
            from ..algorithm import MiniGRPO

            self.algorithm = MiniGRPO()
        return self.algorithm

    def _run(
        self,
        agent: LitAgent[Any],
        algorithm: Algorithm,
        train_dataset: Dataset[Any] | None,
        val_dataset: Dataset[Any] | None,
    ) -> None:
        runner = LitAgentRunner(self.tracer, max_rollouts=self.max_rollouts)
        checkpoints: Checkpoints | None = self.folder
        store = self.store or self._default_store()
        context = AlgorithmContext(
            store=store,
            logger=self.logger,
            checkpoints=checkpoints,
            resume=self.resume,
            initial_resources=self.initial_resources,
            n_runners=self.n_runners,
        )

        async def algorithm_side(_: LightningStore, __: ExecutionEvent) -> None:
            algorithm.bind(context)
            result = algorithm.run(train_dataset=train_dataset, val_dataset=val_dataset)
            if inspect.isawaitable(result):
                await result

        async def runner_side(shared: LightningStore, index: int, event: ExecutionEvent) -> None:
            with runner.run_context(agent=agent, store=shared, hooks=self.hooks, worker_id=index):
                await runner.iter(event=event)

        if self.resume:
            left = asyncio.run(cancel_leftovers(store))  # before a runner claims what the old run left
            if left:
                logger.info("%d unfinished rollouts of the old run cancelled", left)
        self.strategy.execute(algorithm_side, runner_side, store)

    def _default_store(self) -> LightningStore:
        if self.folder is None:
            return InMemoryLightningStore()
        from ..store.sql import SqlLightningStore

        self.folder.path.mkdir(parents=True, exist_ok=True)
        return SqlLightningStore(self.folder.rollouts_path)
