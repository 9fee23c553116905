"""A word problem before it is a row: its text, its numbers, and the name of its story."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias

Operand: TypeAlias = int | Decimal

NAMES: tuple[str, ...] = (
    "Amara", "Ben", "Chloe", "Dario", "Elif", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Kenji", "Lena", "Mateo",
    "Nadia", "Omar", "Priya", "Quinn", "Rosa", "Samir", "Tara", "Uma", "Viktor", "Wanda", "Yusuf", "Zoe",
)  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """A problem with its solution."""

    story: str
    """The text without its numbers and names; two problems of one story differ in nothing else."""
    question: str
    expression: str
    """Expression whose value is the answer, as a calculator takes it."""
    operands: tuple[Operand, ...]
    """The numbers of the expression that the question states in digits."""
    level: int
    """The number of operations."""
    thought: str
    """The plan in a few words, without numbers."""
