"""The score of an answer by reasoning-gym's own scorer, in a process of its own.

Some of its scorers evaluate an answer as Python, and an answer is what a model wrote. So they run where they can write
no file, take bounded memory and time, and start nothing (`worker`); an answer that does harm earns 0.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from ...processes import DeadlineProcess, EndedError, LateError

logger = logging.getLogger(__name__)

SECONDS: Final = 10.0
"""Seconds for one score, the making of its problem included."""

_helper: Final = DeadlineProcess(f"{__package__}.worker")


def score_of(source: Mapping[str, Any], answer: str) -> float:
    """Return the score of an answer, from 0 to 1; 0 where scoring it took too long or ended the process (logged).

    Args:
        source: `generator`, `settings`, `seed` and `index` of the problem.
        answer: what the model gave.

    Raises:
        NotReadyError: the process does not come up.
        ValueError: the problem cannot be made again.
    """
    try:
        score, complaint = _helper.ask([dict(source), answer], SECONDS)
    except (LateError, EndedError) as error:
        logger.warning("scoring an answer to %s: %s; it counts as wrong", source.get("generator"), error)
        return 0.0
    if complaint is not None:
        raise ValueError(complaint)
    return float(score)
