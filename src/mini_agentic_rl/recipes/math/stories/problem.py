"""A word problem before it is a row: its text, its numbers, and the name of its story."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias

Operand: TypeAlias = int | Decimal

NAMES: tuple[str, ...] = (
    "Abel", "Ada", "Ahmed", "Aiko", "Alba", "Alejandro", "Amara", "Amit", "Ana", "Andre", "Anika", "Anton", "Aria",
    "Arjun", "Ava", "Bao", "Beatriz", "Ben", "Bilal", "Bruno", "Camila", "Carl", "Carmen", "Cedric", "Chen", "Chloe",
    "Clara", "Daniel", "Daria", "Dario", "David", "Diego", "Dora", "Eduardo", "Elena", "Eli", "Elif", "Emeka", "Emma",
    "Eric", "Esther", "Ethan", "Fabio", "Farid", "Fatima", "Felix", "Fiona", "Gabriel", "George", "Gina", "Grace",
    "Hamza", "Hana", "Harold", "Helen", "Henry", "Hugo", "Ibrahim", "Ida", "Ines", "Isaac", "Ivan", "Ivy", "Jack",
    "Jamal", "James", "Jasmin", "Joanna", "John", "Jonas", "Julia", "Kai", "Karim", "Kate", "Kenji", "Kofi", "Lara",
    "Laura", "Leah", "Lena", "Leo", "Liam", "Lina", "Lucas", "Lucy", "Maja", "Malik", "Marco", "Maria", "Martin",
    "Mary", "Mateo", "Maya", "Mei", "Michael", "Mila", "Mira", "Mohamed", "Mona", "Nadia", "Naomi", "Nina", "Noah",
    "Nora", "Oliver", "Olivia", "Omar", "Oscar", "Paul", "Pedro", "Peter", "Priya", "Quinn", "Rahim", "Raj", "Rita",
    "Robert", "Rosa", "Ruth", "Sally", "Sam", "Samir", "Sara", "Sofia", "Sven", "Tara", "Thomas", "Tim", "Tom", "Uma",
    "Vera", "Victor", "Viktor", "Wanda", "Wei", "Will", "Yara", "Yuki", "Yusuf", "Zara", "Zoe",
)  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """A problem with its solution."""

    story: str
    """The text without its numbers and names; two problems of one story differ in nothing else."""
    question: str
    expression: str
    """Expression whose value is the answer, as a calculator takes it."""
    level: int
    """The number of operations."""
    thought: str
    """The plan in a few words, without numbers."""
