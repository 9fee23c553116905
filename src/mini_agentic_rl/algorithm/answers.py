"""The answers of a measurement, one row each: which problem, what was said, and what each check says of it.

Two runs are compared problem by problem by these rows (`trainer.comparison`), so they hold no more than that needs:

    evaluation, step  the measurement: its name, and how many steps of the training it came after
    problem, hash     the task's `id`, or its place in the data set; a hash of its question
    sample            number of the try at the problem, from 0
    reward            the final reward; 0 of a rollout that failed or had none
    correct           the strict check: the reward is 1 or more, whatever form of answer it asks for
    lenient           the answer is right in whatever form: by the strict check or `lenient_check`; null where the
                      task says none
    components        the final reward by its names, where it has several
    answer            the text of the last message; null where there is none
    failed            why there was nothing to measure; null where there was
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..adapter import TraceToMessages
from ..rewards import is_correct
from .rollouts import Evaluation, FinishedRollout

LENIENT: Final = "lenient"
"""Name of the component of a reward that is the lenient check, where an agent gives one."""
OF_TRANSFER: Final = ", transfer"
"""Ending of the name of a measurement on the split `transfer`, made beside one on the held-out tasks."""
MAX_ANSWER: Final = 4000
"""Characters of an answer that are kept, from its end."""


def answer_rows(evaluation: Evaluation, step: int = 0) -> list[dict[str, Any]]:
    """Return a row for each rollout of a measurement, in order. Expressions are compared by algebra, in bounded time.

    Args:
        step: finished training steps.
    """
    rewards = evaluation.rewards
    return [
        _row(evaluation, step, index, finished, rewards[index]) for index, finished in enumerate(evaluation.rollouts)
    ]


def question_hash(task: Any) -> str:
    """Return what tells a task from others, whatever its answer and its place: 16 hexadecimal digits of its question,
    or of the whole task where it has none."""
    question = task.get("question") if isinstance(task, Mapping) else task
    text = question if isinstance(question, str) else json.dumps(task, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def lenient_check(task: Any, answer: str | None, components: Mapping[str, float]) -> bool | None:
    """Return whether an answer is right in whatever form it stands; None where nothing says what is right.

    An agent's own reward decides where it has a component `lenient`. Otherwise the last number, option or expression
    of the text is compared with the task's `answer` (`rewards.is_correct`), junk around it or not.
    """
    if LENIENT in components:
        return components[LENIENT] >= 1
    gold = task.get("answer") if isinstance(task, Mapping) else None
    if gold is None:
        return None
    if answer is None:
        return False
    try:
        return is_correct(answer, gold)
    except ValueError:  # a gold answer that is no value
        return None


def _row(evaluation: Evaluation, step: int, index: int, finished: FinishedRollout, reward: float) -> dict[str, Any]:
    task = finished.rollout.input
    number, sample = divmod(index, evaluation.samples)
    components = dict(finished.dimensions) if finished.unscored is None else {}
    answer = last_text(finished)
    correct = reward >= 1.0
    lenient = lenient_check(task, answer, components)
    if correct and lenient is not None:
        lenient = True  # a scorer may take other answers than the one that the task knows
    return {
        "evaluation": evaluation.name,
        "step": step,
        "problem": str(task["id"]) if isinstance(task, Mapping) and "id" in task else str(number),
        "hash": question_hash(task),
        "sample": sample,
        "reward": reward,
        "correct": correct,
        "lenient": lenient,
        "components": components if len(components) > 1 else {},
        "answer": None if answer is None else answer[-MAX_ANSWER:],
        "failed": finished.unscored,
    }


def last_text(finished: FinishedRollout) -> str | None:
    """Return the text of the last message that was sampled; None where it has none, or was never asked for."""
    rows = TraceToMessages().adapt(finished.spans)
    content = rows[-1]["messages"][-1].get("content") if rows and rows[-1]["messages"] else None
    return content if isinstance(content, str) and content.strip() else None


def same_answer_share(rollouts: Sequence[FinishedRollout]) -> float:
    """Return the share of rollouts that ended with the most frequent last message; 0 where none ended with a text."""
    texts = Counter(text for finished in rollouts if (text := last_text(finished)) is not None)
    return max(texts.values(), default=0) / max(1, len(rollouts))
