"""Begin, train, write the summary: the order of every run with a folder. A kind of training only says how it trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..metrics import MetricsLogger, make_logger
from .run_folder import RunFolder, RunState
from .settings import RunSettings

Checkpoint = tuple[int, Path]
"""The step of a checkpoint, and its folder."""


@dataclass(frozen=True)
class RecordedRun:
    """A run whose folder is ready."""

    folder: RunFolder
    logger: MetricsLogger
    is_resumed: bool
    checkpoint: Checkpoint | None
    """The one to go on from; None begins at the beginning."""


def record_run(
    folder: RunFolder,
    settings: RunSettings,
    config: Mapping[str, Any],
    train: Callable[[RecordedRun], Mapping[str, Any]],
    *,
    last_logged: Callable[[Checkpoint | None], int],
    is_writer: bool = True,
    agree: Callable[[RunState], RunState] = lambda state: state,
) -> dict[str, Any]:
    """Run `train` in a folder, and return its summary; of a run that is finished the one that is there.

    Args:
        config: the configuration, as JSON values.
        train: trains, and returns the summary. It is written last: it marks the run as finished.
        last_logged: the last step whose metrics a resumed run keeps: what came after its checkpoint is done again.
        is_writer: False for a process beside the one that writes the folder.
        agree: brings what the writer has found to all processes.

    Raises:
        UserError: the folder cannot be used like this, or not be written.
    """
    state: RunState = "new"
    if is_writer:
        state = folder.begin(config, resume=settings.resume, overwrite=settings.overwrite)
    state = agree(state)
    if state == "finished":
        return folder.read_summary()
    is_resumed = state == "resumed"
    checkpoint = folder.latest_checkpoint() if is_resumed else None
    logger = MetricsLogger()
    if is_writer:
        step = last_logged(checkpoint) if is_resumed else None
        logger = make_logger(settings.loggers, folder.path, resume_step=step)
    with logger:
        summary = dict(train(RecordedRun(folder, logger, is_resumed, checkpoint)))
    if is_writer:
        folder.write_summary(summary)
    return summary
