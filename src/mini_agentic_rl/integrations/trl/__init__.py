"""Environments and reward functions that were written for TRL's GRPOTrainer: `TRLEnvironment`, which needs no TRL."""

from .environment import Tool, TRLEnvironment, WithoutEnvironment

__all__ = ["TRLEnvironment", "Tool", "WithoutEnvironment"]
