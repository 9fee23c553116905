"""The order of every run with a folder: begin or resume, train, write the summary."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..algorithm import Algorithm
from ..errors import UserError
from ..files import disk_failure, one_writer
from ..metrics import MetricsLogger, MultiLogger, PrometheusLogger, make_logger
from ..redaction import without_secrets_within
from .run_folder import RunFolder, RunState
from .settings import RunSettings
from .summary import transcript_rows, write_results

_TRANSCRIPTS: Final = 50

Checkpoint = tuple[int, Path]
"""The step of a checkpoint, and its folder."""

RowsToKeep = Callable[[Checkpoint | None], int | None]
"""Function from the checkpoint of a resumed run to the number of rows of metrics that it keeps: later steps are done
again. None keeps all."""


@dataclass(frozen=True)
class RecordedRun:
    """A run whose folder is ready."""

    folder: RunFolder
    logger: MetricsLogger
    state: RunState
    checkpoint: Checkpoint | None
    """The one to go on from; None begins at the beginning."""

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
    """Keep a run of an algorithm in a folder: yield the run, and write report and summary after the block, unless it
    raises or the run was finished before.

    Args:
        config: the configuration, as JSON values.
        about: returns further entries of the summary; called at the end.

    Raises:
        UserError: another run writes the folder, or it cannot be used like this, or not be written.
    """
    started = time.perf_counter()
    with one_writer(folder.path):
        with open_run(
            folder, settings, config, rows_to_keep=lambda at: algorithm.rows_to_keep(None if at is None else at[1])
        ) as run:
            yield run
            if run.is_finished:
                return
            summary = write_results(folder, algorithm, seconds=time.perf_counter() - started, about=about())
            last = algorithm.evaluations[-1] if algorithm.evaluations else None
            run.logger.table("transcripts", without_secrets_within(transcript_rows(last, _TRANSCRIPTS)))
            _hand_on_adapters(run)
        folder.write_summary(summary)


def _hand_on_adapters(run: RecordedRun) -> None:
    """Give the loggers the files of the adapters of a run."""
    folder = run.folder
    named = sorted(folder.adapters_path.iterdir()) if folder.adapters_path.is_dir() else []
    for path, pattern in ((folder.adapter_path, "*"), *((one, "*") for one in named), (folder.path, "adapter_*")):
        files = sorted(file for file in path.glob(pattern) if file.is_file()) if path.is_dir() else []
        name = "adapter" if path in (folder.path, folder.adapter_path) else f"adapter-{path.name}"
        run.logger.artifact(name, files)


@contextmanager
def open_run(
    folder: RunFolder,
    settings: RunSettings,
    config: Mapping[str, Any],
    *,
    rows_to_keep: RowsToKeep,
    is_writer: bool = True,
    agree: Callable[[RunState], RunState] = lambda state: state,
) -> Iterator[RecordedRun]:
    """Make a folder ready, and yield the run; its logger is closed at the end. `write_summary` marks it as finished.

    Args:
        config: the configuration, as JSON values.
        is_writer: False for a process beside the one that writes the folder.
        agree: broadcasts the state that the writer has found to all processes.

    Raises:
        UserError: another run writes the folder, or it cannot be used like this, or not be written.
    """
    state: RunState = "new"
    if is_writer:
        state = folder.begin(config, resume=settings.resume, overwrite=settings.overwrite)
    state = agree(state)
    checkpoint = None if state == "new" else folder.latest_checkpoint()
    logger = MetricsLogger()
    if is_writer and state != "finished":
        keep_rows = rows_to_keep(checkpoint) if state == "resumed" else None
        if state == "resumed":
            folder.note_resume(0 if checkpoint is None else checkpoint[0])
        names = [*(["console"] if settings.console else []), "jsonl", *settings.loggers]
        logger = make_logger(names, folder.path, keep_rows=keep_rows, hyperparameters=without_secrets_within(config))
        if settings.metrics_port is not None:
            try:
                prometheus = PrometheusLogger(settings.metrics_port, settings.metrics_host)
            except UserError:
                logger.close()
                raise
            logger = MultiLogger([logger, prometheus])
    with logger:
        try:
            yield RecordedRun(folder, logger, state, checkpoint)
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


def record_run(
    folder: RunFolder,
    settings: RunSettings,
    config: Mapping[str, Any],
    train: Callable[[RecordedRun], Mapping[str, Any]],
    *,
    rows_to_keep: RowsToKeep,
    is_writer: bool = True,
    agree: Callable[[RunState], RunState] = lambda state: state,
) -> dict[str, Any]:
    """Run `train` in a folder, and return its summary; of a run that is finished the one that is there.

    Args:
        train: trains, and returns the summary. It is written last: it marks the run as finished.

    The others are those of `open_run`.

    Raises:
        UserError: another run writes the folder, or it cannot be used like this, or not be written.
    """
    with one_writer(folder.path) if is_writer else nullcontext():
        with open_run(folder, settings, config, rows_to_keep=rows_to_keep, is_writer=is_writer, agree=agree) as run:
            if run.is_finished:
                return folder.read_summary()
            summary = dict(train(run))
            _hand_on_adapters(run)
        if is_writer:
            folder.write_summary(summary)
        return summary
