"""Tasks with a known answer as examples of every form: demonstrations, prompts for rewards, right against wrong.

A preference's rejected answer is made of the right solution by one fault (`faults`), whose name the row carries as
`fault`. What is drawn depends on the task and the seed alone; the task behind it lends the off-topic answer.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from .faults import Case, faulty
from .forms import Example, Form, unpaired_of
from .messages import Message, assistant, system, user
from .rows import Row
from .worked import Worked, worked_solution

INSTRUCTION = 'Solve the problem step by step. End with a line "Answer: N".'
"""The system prompt of every example."""


def task_prompt(row: Row) -> list[Message]:
    """What the model is asked."""
    return [system(INSTRUCTION), user(str(row["question"]))]


def is_worked(record: Mapping[str, Any]) -> bool:
    """Whether a record is a task with its worked solution in the manner of GSM8K, which ends in "#### 42"."""
    texts = (record.get("answer"), record.get("solution"))
    return isinstance(record.get("question"), str) and any(isinstance(text, str) and "####" in text for text in texts)


def examples_of_tasks(rows: Sequence[Row], form: Form, seed: int) -> list[Example]:
    """One example a row; two of `unpaired`, a right one and a wrong one.

    Raises:
        ValueError: a preference is asked for of a row whose answer is no number and that has no working.
    """
    if form == "rl":
        return [{**row, "prompt": task_prompt(row), "ground_truth": str(row["answer"])} for row in rows]
    solutions = [worked_solution(row) for row in rows]
    if form == "sft":
        return [
            {"messages": [*task_prompt(row), assistant(solution.text)]}
            for row, solution in zip(rows, solutions, strict=True)
        ]
    pairs = [_pair(row, solutions, at, seed) for at, row in enumerate(rows)]
    return pairs if form == "preference" else [example for pair in pairs for example in unpaired_of(pair)]


def _pair(row: Row, solutions: Sequence[Worked], at: int, seed: int) -> dict[str, Any]:
    rng = random.Random(f"preference/{seed}/{row['id']}")
    other = solutions[(at + 1) % len(solutions)]
    rejected, fault = faulty(rng, Case(row, solutions[at], other))
    return {
        "prompt": task_prompt(row),
        "chosen": [assistant(solutions[at].text)],
        "rejected": [assistant(rejected)],
        "fault": fault,
    }
