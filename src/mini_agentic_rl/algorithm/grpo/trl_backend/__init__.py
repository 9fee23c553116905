"""Mini-GRPO whose advantages, loss and optimizer steps are those of TRL's GRPOTrainer.

The loop, the endpoint, the rollouts and the rewards stay what they are; TRL learns on the same weights, with no copy.
"""

from .mapping import check_backend
from .rows import TRLRow, row_of

__all__ = ["TRLRow", "check_backend", "row_of"]
