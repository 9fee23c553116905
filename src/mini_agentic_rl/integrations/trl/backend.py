"""Mini-GRPO whose advantages, loss and optimizer steps are those of TRL's GRPOTrainer.

Loop, endpoint, rollouts and rewards are those of the native backend; TRL trains the same weights without a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .mapping import TRLRow, check_backend, row_of

if TYPE_CHECKING:
    from .step_trainer import TRLObjective

__all__ = ["TRLRow", "check_backend", "make_objective", "row_of"]


def make_objective(*arguments: Any) -> TRLObjective:
    """Return the `Objective` of a run, with the arguments of `TRLObjective`; imports TRL."""
    from .step_trainer import TRLObjective

    return TRLObjective(*arguments)
