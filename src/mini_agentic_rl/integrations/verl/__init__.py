"""`VERL`: reads a verl configuration and runs it on Mini-GRPO."""

from .verl import VERL, Plan, translate

__all__ = ["VERL", "Plan", "translate"]
