"""Mini-GRPO whose advantages, loss and optimizer steps are those of TRL's GRPOTrainer.

The loop, the endpoint, the rollouts and the rewards stay what they are; TRL learns on the same weights, with no copy.
"""

from .conversation import Conversation, conversation_of
from .mapping import check_backend

__all__ = ["Conversation", "check_backend", "conversation_of"]
