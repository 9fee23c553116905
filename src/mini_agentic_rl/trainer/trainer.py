"""`Trainer`: puts store, runners, agent, hooks and algorithm together and runs them.

The algorithm decides about the training, and the strategy about processes and threads.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, get_args

from typing_extensions import Unpack

from ..adapter import TraceAdapter, TracerTraceToTriplet
from ..algorithm import Algorithm, AlgorithmContext, Baseline, FastAlgorithm, OnFailure, cancel_leftovers
from ..execution import ExecutionStrategy
from ..files import make_private_folder, one_writer
from ..litagent import LitAgent
from ..metrics import ConsoleLogger, MetricsLogger, MultiLogger
from ..policy import launched, restarted
from ..processes import in_daemon_thread, stops_cleanly
from ..runner import LitAgentRunner, Runner
from ..store import InMemoryLightningStore, LightningStore
from ..tracer import Tracer
from ..types import Dataset, Hook, NamedResources
from .components import (
    Component,
    build,
    make_store,
    make_strategy,
    read_inputs,
    refuse_unknown_keywords,
    runners_of,
    runs_algorithm,
)
from .run import AlgorithmBundle, RunnerBundle, StopSwitch, label, recorded
from .run_folder import RunFolder
from .settings import RunSettings, TraceExportSettings, exported
from .summary import what_next

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0


_ALGORITHMS = {
    "baseline": "mini_agentic_rl.algorithm.Baseline",
    "grpo": "mini_agentic_rl.algorithm.MiniGRPO",
    "ppo": "mini_agentic_rl.algorithm.MiniPPO",
    "verl": "mini_agentic_rl.algorithm.VERL",
}
_TRACERS = {"otel": "mini_agentic_rl.tracer.OtelTracer", "dummy": "mini_agentic_rl.tracer.DummyTracer"}


class TrainerOptions(TypedDict, total=False):
    """Further keywords of `Trainer` for special cases."""

    dev: bool
    """Let `fit` behave like `dev`."""
    max_rollouts: int | None
    """Number of rollouts after which a runner ends; None for no limit."""
    num_epochs: int | None
    """Passes over the training tasks, instead of the algorithm's own setting."""
    on_failure: OnFailure | None
    """Treatment of failed rollouts, instead of the algorithm's own setting: "drop" leaves them out, "zero" counts them
    as reward 0, "retry" runs them again."""
    tracer: Component[Tracer] | None
    """Tracer, which makes the spans; by default an `OtelTracer`."""
    runner: Component[Runner[Any]] | None
    """Runner, which claims rollouts and runs the agent; by default a `LitAgentRunner`."""
    port: int | None
    """Port of the store server with the strategy "cs", even if the strategy is given as an instance."""
    otlp: str | TraceExportSettings | None
    """Address to export the spans to, or `TraceExportSettings`; by default that of OpenTelemetry's variables."""
    resources: NamedResources | None
    """Another name of `initial_resources`."""
    n_workers: int | None
    """Older name of `n_runners`."""
    max_tasks: int | None
    """Older name of `max_rollouts`."""
    triplet_exporter: Component[TraceAdapter[Any]] | None
    """Older name of `adapter`."""
    daemon: bool
    """Accepted without effect: processes that are started always end with this one."""


class Trainer:
    """Runs an algorithm and its runners.

    `algorithm`, `store`, `strategy`, `tracer`, `adapter`, `runner`, `llm_proxy` and each hook are components: the part
    itself, its class, a factory, a dotted path, a short name, or `{"type": one of these, **keywords}`.

    Args:
        algorithm: learning algorithm; by default `MiniGRPO()` on the embedded model.
        agent: agent to train; may instead be given to `fit`, `dev` and `train`.
        train_dataset, val_dataset: tasks; may instead be given to `fit`, `dev` and `train`.
        n_runners: number of concurrent rollouts; by default 8, or that of a strategy given as an instance.
        hooks: code around each rollout, in order.
        initial_resources: resources for the agent besides those of the algorithm.
        store: store of rollouts and spans; also a URL or a file (`sqlite:///…`, `postgresql://…`, `http://…`). By
            default SQLite in `output_dir`, or memory without one; with AGL_MANAGED_STORE=0 the running store server.
        strategy: "shm" runs everything in this process, "cs" runs runners in processes of their own, "ray" as actors of
            a Ray cluster (`RayExecutionStrategy`). By default "cs" if `port` or one of the variables AGL_CURRENT_ROLE,
            AGL_MANAGED_STORE, AGL_SERVER_HOST and AGL_SERVER_PORT is given, else "shm".
        adapter: converts spans for the algorithm; by default a `TracerTraceToTriplet`.
        llm_proxy: gateway over an upstream model, for the algorithm; an `LLMProxy` without a store records in this one.
        output_dir: folder of the run: configuration, metrics, checkpoints, adapter, rollouts, summary, report, as the
            commands write them. Each `fit` is a run; a folder that holds a run is refused; `dev` writes nothing. By
            default nothing is written. With a `RunFolder` the caller writes configuration, metrics, summary and report.
        logger: receiver of progress and metrics besides `metrics.jsonl` in `output_dir`; by default standard error, and
            none with `MetricsLogger()`.
        resume: continue the run in `output_dir` from its latest checkpoint, with the same settings; restore the results
            of a finished run.
        overwrite: replace the run in `output_dir`.
        options: see `TrainerOptions`.

    Raises:
        UserError: a component cannot be made, or a keyword is unknown (then it is a TypeError as well).
        ValueError: a value is not allowed; the message names the setting.
    """

    def __init__(
        self,
        *,
        algorithm: Component[Algorithm] | None = None,
        agent: Any = None,
        train_dataset: Dataset[Any] | None = None,
        val_dataset: Dataset[Any] | None = None,
        n_runners: int | None = None,
        hooks: Component[Hook] | Sequence[Component[Hook]] | None = None,
        initial_resources: NamedResources | None = None,
        store: Component[LightningStore] | Path | None = None,
        strategy: Component[ExecutionStrategy] | None = None,
        adapter: Component[TraceAdapter[Any]] | None = None,
        llm_proxy: Any = None,
        output_dir: str | Path | RunFolder | None = None,
        logger: MetricsLogger | None = None,
        resume: bool = False,
        overwrite: bool = False,
        **options: Unpack[TrainerOptions],
    ) -> None:
        keywords = [name for name in inspect.signature(Trainer).parameters if name != "options"]
        refuse_unknown_keywords(options, [*keywords, *TrainerOptions.__annotations__])
        n_runners = _either("n_runners", n_runners, "n_workers", options.get("n_workers"))
        max_rollouts = _either("max_rollouts", options.get("max_rollouts"), "max_tasks", options.get("max_tasks"))
        adapter = _either("adapter", adapter, "triplet_exporter", options.get("triplet_exporter"))
        resources = _either("initial_resources", initial_resources, "resources", options.get("resources"))
        num_epochs, on_failure, port = options.get("num_epochs"), options.get("on_failure"), options.get("port")
        if n_runners is not None and n_runners < 1:
            raise ValueError(f"n_runners must be 1 or more, not {n_runners}: without a runner no rollout is ever run")
        if num_epochs is not None and num_epochs < 1:
            raise ValueError(f"num_epochs must be 1 or more, not {num_epochs}")
        if on_failure is not None and on_failure not in get_args(OnFailure):
            raise ValueError(f"on_failure must be 'drop', 'zero' or 'retry', not {on_failure!r}")
        if (resume or overwrite) and output_dir is None:
            raise ValueError(f"{'resume' if resume else 'overwrite'} needs output_dir: the folder of the run")
        self.is_dev = options.get("dev", False)
        self.max_rollouts = max_rollouts
        self.num_epochs = num_epochs
        self.on_failure = on_failure
        self.initial_resources: NamedResources = dict(resources or {})
        self.folder = RunFolder(output_dir) if isinstance(output_dir, str | Path) else output_dir
        self._keeps_run = isinstance(output_dir, str | Path)
        self.logger = ConsoleLogger() if logger is None else logger
        self._closes_logger = logger is None
        again = output_dir is not None and restarted()
        self.resume = resume or again
        self.overwrite = overwrite and not again
        self.port = port
        otlp = options.get("otlp")
        self.export = otlp if isinstance(otlp, TraceExportSettings) else TraceExportSettings(otlp=otlp)
        tracer = options.get("tracer")
        self.tracer: Tracer | None = None if tracer is None else build("tracer", tracer, Tracer, names=_TRACERS)
        self.adapter: TraceAdapter[Any] = build(
            "adapter",
            TracerTraceToTriplet if adapter is None else adapter,
            TraceAdapter,
            untyped="mini_agentic_rl.adapter.TracerTraceToTriplet",
        )
        self.runner: Runner[Any] = build(  # one object for all runners of a process, each in its own `run_context`
            "runner",
            options.get("runner") or LitAgentRunner,
            Runner,
            untyped="mini_agentic_rl.runner.LitAgentRunner",
            settings={"tracer": self.tracer, "max_rollouts": max_rollouts},
        )
        self.strategy = make_strategy(strategy, n_runners=n_runners, port=port)
        self.n_runners = runners_of(self.strategy, n_runners)
        self.store = make_store(store, self.folder)
        """Store of rollouts and spans; None where each run opens the one in `output_dir`."""
        is_new = store is None and isinstance(self.store, InMemoryLightningStore)
        self.owns_store = self.store is None or is_new
        """No other process writes the store."""
        self.algorithm: Algorithm | None = (
            None if algorithm is None else build("algorithm", algorithm, Algorithm, names=_ALGORITHMS)
        )
        self.llm_proxy = build("llm_proxy", llm_proxy, None, untyped="mini_agentic_rl.llm_proxy.LLMProxy")
        if hooks is None or isinstance(hooks, str) or not isinstance(hooks, Sequence):
            hooks = [] if hooks is None else [hooks]
        self.hooks: list[Hook] = [build("hooks", hook, Hook) for hook in hooks]
        self.inputs = read_inputs(agent, train_dataset, val_dataset)
        """Agent and tasks of `fit`, `dev` and `train` where they are given no others."""

    @property
    def agent(self) -> LitAgent[Any] | None:
        """The agent that the trainer was given."""
        return self.inputs.agent

    def fit(
        self,
        agent: Any = None,
        train_dataset: Dataset[Any] | None = None,
        val_dataset: Dataset[Any] | None = None,
    ) -> None:
        """Train: `fit(agent, train_dataset, val_dataset=…)`, or `fit(train_dataset)` with the agent given before.

        The agent is a `LitAgent`, its class, or a function that tries a task. Returns when the algorithm has ended.

        Raises:
            ValueError: there is no agent.
            UserError: `output_dir` holds a run, and neither `resume` nor `overwrite` is set.
            RuntimeError: called from inside a running event loop.
            Exception: whatever the algorithm raised.
            KeyboardInterrupt: Ctrl-C; a checkpoint is written where there is an output_dir.
            SystemExit: SIGTERM, likewise; with code 143.
        """
        _refuse_running_loop("fit")
        with stops_cleanly(), self._run(self.is_dev, agent, train_dataset, val_dataset) as run:
            if run is not None:
                run.execute()

    def dev(
        self,
        agent: Any = None,
        train_dataset: Dataset[Any] | None = None,
        val_dataset: Dataset[Any] | None = None,
    ) -> None:
        """Try an agent out: as `fit` with the `Baseline`, or with the trainer's algorithm if that is a fast one."""
        _refuse_running_loop("dev")
        with self._run(True, agent, train_dataset, val_dataset) as run:
            if run is not None:
                run.execute()

    async def train(
        self,
        agent: Any = None,
        train_dataset: Dataset[Any] | None = None,
        val_dataset: Dataset[Any] | None = None,
    ) -> dict[str, Any]:
        """`fit` for code that runs in an event loop; returns what `summary.json` says (accuracies with their intervals,
        seconds, peak memory), and without an output folder the algorithm's own summary.

        The run has a thread of its own. Cancelling the caller, as Ctrl-C does, stops the run; what an algorithm does
        when it is interrupted, such as writing a checkpoint, is done before this raises.

        Raises:
            ValueError: there is no agent.
            Exception: whatever the algorithm raised.
        """
        with self._run(self.is_dev, agent, train_dataset, val_dataset) as run:
            if run is not None:
                await run.execute_async()
        written = {} if self.folder is None else self.folder.read_summary()
        return written if written or run is None else dict(run.algorithm.summary)

    @contextmanager
    def _run(self, dev: bool, agent: Any, train_dataset: Any, val_dataset: Any) -> Iterator[Run | None]:
        """Yield the run, with its folder and loggers ready; None for a finished run without a checkpoint to restore its
        results from, and on ranks that follow. The folder is completed after the block."""
        given = read_inputs(agent, train_dataset, val_dataset)
        chosen = self.inputs.agent if given.agent is None else given.agent
        train = self.inputs.train if given.train is None else given.train
        val = self.inputs.val if given.val is None else given.val
        if chosen is None:
            raise ValueError("no agent: use Trainer(agent=…).fit(dataset) or Trainer(…).fit(agent, dataset)")
        with_algorithm = runs_algorithm(self.strategy)
        algorithm = self._algorithm(dev) if with_algorithm else Baseline()  # of no use here: no torch for runners
        launch = launched() if with_algorithm else None
        for name, value in (("num_epochs", self.num_epochs), ("on_failure", self.on_failure)):
            if with_algorithm and value is not None and name not in algorithm.honours:
                logger.warning("Trainer(%s=%r) has no effect: %s does not follow it", name, value, label(algorithm))
        start = partial(Run, self, algorithm, chosen, train, val)
        try:
            if launch is not None and launch.follows:
                algorithm.follow(launch)
                yield None
            elif self.folder is None or dev or not with_algorithm:
                yield start(self.logger)
            elif not self._keeps_run:
                yield start(self.logger, self.folder, resume=self.resume)
            else:
                config = {
                    "algorithm": label(algorithm),
                    **algorithm.configuration,
                    "num_epochs": self.num_epochs,
                    "on_failure": self.on_failure,
                    "agent": label(chosen),
                    "tasks": {"train": 0 if train is None else len(train), "val": 0 if val is None else len(val)},
                    "n_runners": self.n_runners,
                }
                yield from self._recorded(start, algorithm, json.loads(json.dumps(config, default=str)))
        finally:
            if self._closes_logger:
                self.logger.close()

    def _recorded(
        self, start: Callable[..., Run], algorithm: Algorithm, config: Mapping[str, Any]
    ) -> Iterator[Run | None]:
        """Yield the run, in a folder that is written as those of the commands are."""
        assert self.folder is not None
        if not runs_algorithm(self.strategy, here=True):  # another process has the results
            with one_writer(self.folder.path):
                state = self.folder.begin(config, resume=self.resume, overwrite=self.overwrite)
                yield start(self.logger, self.folder, resume=state != "new")
            return
        settings = RunSettings(output_dir=self.folder.path, console=False, resume=self.resume, overwrite=self.overwrite)
        with recorded(self.folder, settings, config, algorithm) as kept:
            if kept.is_finished:
                self.logger.note(f"the run in {self.folder.path} is finished: nothing is left to do")
            if kept.is_finished and kept.checkpoint is None:
                yield None
                return
            loggers = MultiLogger([kept.logger, self.logger])  # first the file: it is whole whatever the others do
            yield start(loggers, self.folder, resume=kept.state != "new")
        if self._closes_logger:  # the last phase ends before the verdict
            self.logger.close()
        for line in what_next(self.folder):
            self.logger.note(line)

    def __reduce__(self) -> tuple[Any, ...]:
        """A trainer stays in its process: an agent that is sent to another one arrives without it."""
        return _nothing, ()

    def _algorithm(self, dev: bool) -> Algorithm:
        if dev:
            if isinstance(self.algorithm, FastAlgorithm):
                return self.algorithm
            if self.algorithm is not None:
                label = type(self.algorithm).__name__
                logger.warning("%s is not for trying out: the Baseline runs in its place", label)
            return Baseline()
        if self.algorithm is None:
            from ..algorithm import MiniGRPO

            self.algorithm = MiniGRPO()
        return self.algorithm


class Run:
    """A run of a trainer: its algorithm and its runners on one store, executed by its strategy.

    Args:
        logger: metrics and progress of the algorithm.
        folder: folder of the checkpoints and results, and of the rollouts where the trainer has no store.
        resume: go on from the latest checkpoint in `folder`.
    """

    def __init__(
        self,
        trainer: Trainer,
        algorithm: Algorithm,
        agent: LitAgent[Any],
        train_dataset: Dataset[Any] | None,
        val_dataset: Dataset[Any] | None,
        logger: MetricsLogger,
        folder: RunFolder | None = None,
        *,
        resume: bool = False,
    ) -> None:
        self.trainer, self.algorithm, self.agent = trainer, algorithm, agent
        self.runs_algorithm = runs_algorithm(trainer.strategy)
        """True if the algorithm is part of this start of the program, and not runners alone."""
        # The unfinished rollouts of an earlier run are cancelled before a runner can claim them.
        self._cancels_leftovers = self.runs_algorithm and (resume or trainer.owns_store)
        store = trainer.store
        if store is None and folder is not None and self.runs_algorithm:
            from ..store import SqlLightningStore

            make_private_folder(folder.path)
            store = SqlLightningStore(folder.rollouts_path)
        # A process of runners alone reaches the algorithm's store.
        self.store: LightningStore = InMemoryLightningStore() if store is None else store
        agent.set_trainer(trainer)
        algorithm.set_trainer(trainer)
        context_on = partial(
            AlgorithmContext,
            logger=logger,
            checkpoints=folder,
            resume=resume,
            initial_resources=trainer.initial_resources,
            n_runners=trainer.n_runners,
            adapter=trainer.adapter,
            llm_proxy=trainer.llm_proxy,
            num_epochs=trainer.num_epochs,
            on_failure=trainer.on_failure,
            trained_agents=agent.trained_agents,
        )
        self._switch = StopSwitch()
        self._algorithm_bundle = AlgorithmBundle(algorithm, context_on, train_dataset, val_dataset, self._switch)
        self._runner_bundle = RunnerBundle(trainer.runner, agent, trainer.hooks, self._switch)

    def execute(self) -> None:
        """Run to the end of the algorithm. Not callable from inside a running event loop.

        Raises:
            Exception: whatever the algorithm raised.
        """
        trainer, bundles = self.trainer, (self._algorithm_bundle, self._runner_bundle)
        try:
            if self._cancels_leftovers:
                left = asyncio.run(cancel_leftovers(self.store))
                if left:
                    logger.info("%d unfinished rollouts of an earlier run cancelled", left)
            if not self.runs_algorithm:
                trainer.strategy.execute(*bundles, self.store)
                return
            folder = None if trainer.folder is None else trainer.folder.path
            with exported(self.store, trainer.export, agent=label(self.agent), run=folder) as store:
                trainer.strategy.execute(*bundles, store)
        finally:
            if trainer.store is None:
                asyncio.run(self.store.close())

    async def execute_async(self) -> None:
        """As `execute`, in a thread of its own. Cancelled, it stops the run, waits for its end, and is cancelled then.

        Raises:
            Exception: whatever the algorithm raised.
        """
        work = in_daemon_thread(self.execute, "trainer")
        # Retrieve the exception of a stopped run, so that asyncio does not log it.
        work.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            while not work.done() and (self._switch.press() or self.trainer.strategy.stop() or self.runs_algorithm):
                await asyncio.wait({work}, timeout=_LOOK_SECONDS)
            raise


def _either(name: str, value: Any, alias: str, other: Any) -> Any:
    """Return the value that was given under one of two names.

    Raises:
        ValueError: it was given under both.
    """
    if value is not None and other is not None:
        raise ValueError(f"{name} and {alias} are two names of one thing: give one of them")
    return other if value is None else value


def _nothing() -> None:
    return None


def _refuse_running_loop(method: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        f"Trainer.{method} runs event loops of its own and cannot be called from inside one: "
        "use `await trainer.train(agent, train_dataset, val_dataset=…)`"
    )
