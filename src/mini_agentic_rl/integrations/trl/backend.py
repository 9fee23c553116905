"""Mini-GRPO whose advantages, loss and optimizer steps are those of TRL's GRPOTrainer.

The loop, the endpoint, the rollouts and the rewards stay what they are; TRL learns on the same weights, with no copy.
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
