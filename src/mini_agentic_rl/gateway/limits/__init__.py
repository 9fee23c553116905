"""What a gateway lets in: keys, rates, pauses and draining, and how much each rollout may use."""

from .budget import RolloutBudgets
from .gate import Gate
from .settings import GatewayLimits, RolloutLimits

__all__ = ["Gate", "GatewayLimits", "RolloutBudgets", "RolloutLimits"]
