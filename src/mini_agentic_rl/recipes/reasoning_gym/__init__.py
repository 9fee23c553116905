"""Any generator of the package reasoning-gym, as tasks that are answered in words."""

from .gym import ReasoningGym

__all__ = ["ReasoningGym"]
