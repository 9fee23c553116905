"""What is known of a training: `training.json` in its output folder, written by the process that trains."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from ..atomic_files import write_json
from ..config import Settings

STATE_FILE = "training.json"
LOG_FILE = "training.log"

Phase = Literal["running", "finished", "stopped", "failed"]


class TrainingState(Settings):
    """One training."""

    state: Phase
    """`stopped` was ended by somebody, with a checkpoint where it had come to train; `failed` ended by itself."""
    algorithm: str
    """What it trains by."""
    parameters: dict[str, Any]
    """What it was started with."""
    started: float
    """Seconds since the epoch."""
    ended: float | None = None
    """Seconds since the epoch; None while it runs."""
    message: str | None = None
    """Why it failed, or what to do next."""
    result: dict[str, Any] | None = None
    """What came of it."""

    def ended_as(
        self, state: Phase, *, message: str | None = None, result: dict[str, Any] | None = None
    ) -> TrainingState:
        """The same training, ended now."""
        return self.model_copy(update={"state": state, "ended": time.time(), "message": message, "result": result})

    def write(self, folder: Path) -> None:
        """Keep it in the output folder.

        Raises:
            OSError: it cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / STATE_FILE, json.loads(self.model_dump_json()))


def read_state(folder: Path) -> TrainingState | None:
    """The training in an output folder; None where there is none."""
    try:
        return TrainingState.model_validate_json((folder / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None
