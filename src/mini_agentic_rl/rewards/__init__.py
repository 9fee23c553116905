"""Rewards: pure functions of what a model said and what was right."""

from .combine import weighted_sum
from .format import has_answer_line, has_boxed_answer, has_thinking
from .length import length_penalty
from .math import extract_answer, is_correct
from .symbolic import SymbolicError

__all__ = [
    "SymbolicError",
    "extract_answer",
    "has_answer_line",
    "has_boxed_answer",
    "has_thinking",
    "is_correct",
    "length_penalty",
    "weighted_sum",
]
