"""`VERL`: reads a verl configuration and runs it on Mini-GRPO."""

from .plan import Plan, translate
from .verl import VERL

__all__ = ["VERL", "Plan", "translate"]
