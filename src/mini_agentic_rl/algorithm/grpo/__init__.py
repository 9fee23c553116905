"""Mini-GRPO: advantage, loss, batch, update, and the loop around them."""

from .advantage import Advantage, group_centred, group_normalized
from .loss import GRPOLoss, term_weights
from .mini_grpo import MiniGRPO
from .settings import GRPOSettings

__all__ = ["Advantage", "GRPOLoss", "GRPOSettings", "MiniGRPO", "group_centred", "group_normalized", "term_weights"]
