"""`compare`: runs on the same problems, by the answers that they kept. Loads no model."""

from __future__ import annotations

from typing import Any

from ..trainer import compare_runs, load_run
from .settings import CompareSettings


def compare_job(settings: CompareSettings) -> dict[str, Any]:
    """Return what `compare_runs` finds, each run compared with the first.

    Raises:
        UserError: fewer than two runs, one that kept no answers, or two without a common problem.
    """
    return compare_runs([load_run(run, settings.evaluation) for run in settings.runs])
