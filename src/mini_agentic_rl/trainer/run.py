"""One run: the bundles of the algorithm and of the runners, and its folder from the beginning to the summary.

The bundles are objects and not closures, so that a strategy may send them to other processes. `open_run` and `recorded`
keep a run in a folder: begun, or resumed from its latest checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..algorithm import Algorithm, AlgorithmContext
from ..attribution import unrecorded
from ..errors import UserError
from ..execution import ExecutionEvent
from ..files import disk_failure, one_writer
from ..litagent import LitAgent
from ..metrics import MetricsLogger, MultiLogger, PrometheusLogger, make_logger
from ..redaction import without_secrets_within
from ..runner import Runner
from ..store import LightningStore
from ..types import Dataset, Hook
from .run_folder import RunFolder, RunState
from .settings import RunSettings
from .summary import transcript_rows, write_results

logger = logging.getLogger(__name__)

_TRANSCRIPTS: Final = 50

Checkpoint = tuple[int, Path]
"""The step of a checkpoint, and its folder."""


def label(part: Algorithm | LitAgent[Any]) -> str:
    """Return the name of an algorithm or an agent: of a function that name, else the class's."""
    return str(getattr(part, "__name__", type(part).__name__))


class StopSwitch:
    """Ends a run from another thread, at the latest when the first part of the run starts in this process.

    Each of the two methods writes its own field before it reads the other's, so neither can miss the other.
    """

    def __init__(self) -> None:
        self._pressed = False
        self._event: ExecutionEvent | None = None

    def connect(self, event: ExecutionEvent) -> None:
        """Let `press` set this event, which ends the run."""
        self._event = event
        if self._pressed:
            event.set()

    def press(self) -> bool:
        """End the run; False if no part of it runs in this process yet."""
        self._pressed = True
        if self._event is not None:
            self._event.set()
        return self._event is not None


@dataclass
class AlgorithmBundle:
    """Runs the algorithm to its end, or until the event is set: then it is cancelled and may write a checkpoint."""

    algorithm: Algorithm
    context_on: Callable[[LightningStore], AlgorithmContext]
    """Make the context of the algorithm for a store, which each process reaches in its own way."""
    train_dataset: Dataset[Any] | None
    val_dataset: Dataset[Any] | None
    switch: StopSwitch

    async def __call__(self, store: LightningStore, event: ExecutionEvent) -> None:
        self.switch.connect(event)
        work = asyncio.ensure_future(self._run(store))
        stop = asyncio.ensure_future(event.wait_async())
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            await _end(work)
        await work

    async def _run(self, store: LightningStore) -> None:
        context = self.context_on(store)
        if context.llm_proxy is not None:
            from ..gateway import LLMProxy

            if isinstance(context.llm_proxy, LLMProxy) and context.llm_proxy.get_store() is None:
                context.llm_proxy.set_store(store)
        self.algorithm.bind(context)
        with unrecorded():  # calls of the algorithm itself belong to no rollout
            await self.algorithm.execute(self.train_dataset, self.val_dataset)


@dataclass
class RunnerBundle:
    """Runs the runner of one number until the event is set."""

    runner: Runner[Any]
    agent: LitAgent[Any]
    hooks: Sequence[Hook]
    switch: StopSwitch

    async def __call__(self, store: LightningStore, index: int, event: ExecutionEvent) -> None:
        self.switch.connect(event)
        with self.runner.run_context(agent=self.agent, store=store, hooks=self.hooks, worker_id=index):
            await self.runner.iter(event=event)


async def _end(work: asyncio.Future[None]) -> None:
    """Cancel `work`, and wait for its end.

    A strategy may cancel the bundle for the same event. That must not cut short the end of the algorithm, such as
    writing a checkpoint.
    """
    work.cancel()
    while not work.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({work})


@dataclass
class RecordedRun:
    """A run whose folder is ready."""

    folder: RunFolder
    logger: MetricsLogger
    state: RunState
    checkpoint: Checkpoint | None
    """The one to go on from; None begins at the beginning."""
    summary: Mapping[str, Any] | None = None
    """Set by the run at its end, and then written to the folder."""

    @property
    def is_resumed(self) -> bool:
        """True if an unfinished run is resumed."""
        return self.state == "resumed"

    @property
    def is_finished(self) -> bool:
        """True if the resumed run has its summary already: there is nothing to do."""
        return self.state == "finished"


@contextmanager
def recorded(
    folder: RunFolder,
    settings: RunSettings,
    config: Mapping[str, Any],
    algorithm: Algorithm,
    *,
    about: Callable[[], Mapping[str, Any]] = dict,
) -> Iterator[RecordedRun]:
    """Keep a run of an algorithm in a folder, as `open_run` does; write report and summary after the block.

    Args:
        config: the configuration, as JSON values.
        about: returns further entries of the summary; called at the end.

    Raises:
        UserError: another run writes the folder, or it cannot be used like this, or not be written.
    """
    started = time.perf_counter()

    def rows_to_keep(checkpoint: Checkpoint | None) -> int | None:
        return algorithm.rows_to_keep(None if checkpoint is None else checkpoint[1])

    with open_run(folder, settings, config, rows_to_keep=rows_to_keep) as run:
        yield run
        if not run.is_finished:
            run.summary = write_results(folder, algorithm, seconds=time.perf_counter() - started, about=about())
            last = algorithm.evaluations[-1] if algorithm.evaluations else None
            run.logger.table("transcripts", without_secrets_within(transcript_rows(last, _TRANSCRIPTS)))


@contextmanager
def open_run(
    folder: RunFolder,
    settings: RunSettings,
    config: Mapping[str, Any],
    *,
    rows_to_keep: Callable[[Checkpoint | None], int | None],
    is_writer: bool = True,
    agree: Callable[[RunState], RunState] = lambda state: state,
) -> Iterator[RecordedRun]:
    """Make a folder ready, and yield the run. After the block give its adapters to the loggers, close these, and write
    the summary that the block has set, which marks the run as finished.

    Args:
        config: the configuration, as JSON values.
        rows_to_keep: returns the number of rows of metrics that a run resumed from a checkpoint keeps; later steps are
            done again. None keeps all.
        is_writer: False for a process beside the one that writes the folder.
        agree: broadcasts the state that the writer has found to all processes.

    Raises:
        UserError: another run writes the folder, or it cannot be used like this, or not be written.
    """
    with one_writer(folder.path) if is_writer else contextlib.nullcontext():
        state: RunState = "new"
        if is_writer:
            state = folder.begin(config, resume=settings.resume, overwrite=settings.overwrite)
        state = agree(state)
        checkpoint = None if state == "new" else folder.latest_checkpoint()
        logger = MetricsLogger()
        if is_writer and state != "finished":
            if state == "resumed":
                folder.note_resume(0 if checkpoint is None else checkpoint[0])
            logger = _loggers(folder, settings, config, rows_to_keep(checkpoint) if state == "resumed" else None)
        run = RecordedRun(folder, logger, state, checkpoint)
        with logger:
            try:
                yield run
                if run.summary is not None:
                    _hand_on_adapters(run)
            except UserError:
                raise
            except Exception as error:  # torch and safetensors raise errors of their own
                failure = disk_failure(error, folder.path)
                if failure is None:
                    raise
                raise UserError(
                    f"{folder.path} cannot be written: {failure}; mend that, then go on with `resume`",
                    setting="output_dir",
                ) from error
        if is_writer and run.summary is not None:
            folder.write_summary(run.summary)


def _loggers(
    folder: RunFolder, settings: RunSettings, config: Mapping[str, Any], keep_rows: int | None
) -> MetricsLogger:
    names = [*(["console"] if settings.console else []), "jsonl", *settings.loggers]
    logger = make_logger(names, folder.path, keep_rows=keep_rows, hyperparameters=without_secrets_within(config))
    if settings.metrics_port is None:
        return logger
    try:
        return MultiLogger([logger, PrometheusLogger(settings.metrics_port, settings.metrics_host)])
    except UserError:
        logger.close()
        raise


def _hand_on_adapters(run: RecordedRun) -> None:
    """Give the loggers the files of the adapters of a run."""
    folder = run.folder
    named = sorted(folder.adapters_path.iterdir()) if folder.adapters_path.is_dir() else []
    for path, pattern in ((folder.adapter_path, "*"), *((path, "*") for path in named), (folder.path, "adapter_*")):
        files = sorted(file for file in path.glob(pattern) if file.is_file()) if path.is_dir() else []
        name = "adapter" if path in (folder.path, folder.adapter_path) else f"adapter-{path.name}"
        run.logger.artifact(name, files)
