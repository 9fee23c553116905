"""TRL kept to what it is here for: it is looked for in one place, reports to nobody, and draws no progress bars."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import constants

import datasets

from ..errors import UserError
from ..logging import ignore_library_notices


def require_trl() -> None:
    """Check that TRL is there.

    Raises:
        UserError: it is not installed.
    """
    if importlib.util.find_spec("trl") is None:
        raise UserError("this needs TRL: pip install 'mini-agentic-rl[trl]'")


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Within, TRL sends no usage report to the Hub, data sets show no progress bars, and no library tells what it will
    rename."""
    reported, shown = constants.HF_HUB_DISABLE_TELEMETRY, not datasets.are_progress_bars_disabled()
    constants.HF_HUB_DISABLE_TELEMETRY = True
    datasets.disable_progress_bars()
    try:
        with warnings.catch_warnings():
            ignore_library_notices()
            yield
    finally:
        constants.HF_HUB_DISABLE_TELEMETRY = reported
        if shown:
            datasets.enable_progress_bars()
