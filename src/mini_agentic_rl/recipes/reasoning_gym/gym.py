"""Any generator of reasoning-gym as tasks, answered in words and scored by the generator's own scorer.

`reasoning_gym:NAME` takes a generator's defaults, `reasoning_gym:NAME?min_terms=2&max_terms=3` changes its settings,
whose values are JSON or text. The package is in the extra "recipes".
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Final

from ...datasets import (
    DEFAULT_SIZE,
    SPLITS,
    DatasetError,
    Message,
    Row,
    TaskRows,
    assistant,
    check_split,
    digest,
    named_options,
    split_of,
)
from ...environments import MAX_ANSWER, Episode, Episodes, field_of
from ...errors import MissingPackageError, UserError, nearest
from ...processes import DeadlineProcess, EndedError, LateError

logger = logging.getLogger(__name__)


# Scores by reasoning-gym's own scorers, in a separate process.
#
# Some scorers evaluate the model's answer as Python. They run in a process that can write no files, start no processes,
# and has bounded memory and time (`worker`); a harmful answer scores 0.


SECONDS: Final = 10.0
"""Seconds for one score, including the generation of its problem."""

_helper: Final = DeadlineProcess(f"{__package__}.worker")


def score_of(source: Mapping[str, Any], answer: str) -> float:
    """Return the score of an answer, from 0 to 1; 0 where scoring it took too long or ended the process (logged).

    Args:
        source: `generator`, `settings`, `seed` and `index` of the problem.
        answer: the model's answer.

    Raises:
        NotReadyError: the process does not start.
        ValueError: the problem cannot be generated again.
    """
    try:
        score, complaint = _helper.ask([dict(source), answer], SECONDS)
    except (LateError, EndedError) as error:
        logger.warning("scoring an answer to %s: %s; it counts as wrong", source.get("generator"), error)
        return 0.0
    if complaint is not None:
        raise ValueError(complaint)
    return float(score)


REASONING_GYM: Final = "reasoning_gym"
MARK: Final = "Answer:"

_BLOCK: Final = 1_000_000
"""Seeds of a generator from one `seed` to the next; each gives one batch."""
_BATCH: Final = 50
_MAX_BATCHES_WITHOUT_NEW: Final = 60
_MAX_LONG_ANSWER: Final = 20 * MAX_ANSWER


class ReasoningGym(Episodes):
    """One generator with its settings. There are no levels, and no split `transfer`."""

    name: ClassVar[str] = REASONING_GYM
    levels: ClassVar[tuple[int, ...]] = (1,)
    splits: ClassVar[tuple[str, ...]] = SPLITS
    prompt: ClassVar[str] = 'Solve the problem. End with "Answer: " and the answer alone.'
    max_new_tokens: ClassVar[int] = 128

    def __init__(self, options: str = "") -> None:
        """Look up the generator that `options` names, with its settings: `NAME?key=value&key=value`.

        Raises:
            DatasetError: there is no generator of this name.
            MissingPackageError: reasoning-gym is not installed.
        """
        super().__init__()
        try:
            generator, settings = named_options(options, setting="dataset")
        except UserError as error:
            raise DatasetError(f"{REASONING_GYM}:{error.text}", setting="dataset") from error
        known = generators()
        if generator not in known:
            near = nearest(generator, known) if generator else None
            meant = "" if near is None else f" (did you mean {near!r}?)"
            raise DatasetError(
                f"{REASONING_GYM} has no generator {generator!r}{meant}; it has: {', '.join(known)}", setting="dataset"
            )
        self.generator = generator
        self.settings = settings

    def tasks(
        self, split: str, size: int | None = None, seed: int = 0, levels: Sequence[int] | None = None
    ) -> TaskRows:
        """Return `size` different tasks of one split: a question is in the split that its hash names.

        A row holds `id`, `question`, `answer` ("" where the generator knows none, only how to check one), and `source`,
        from which its scorer makes it again.

        Raises:
            DatasetError: an unknown split or setting, a negative size or seed, or a size beyond what there is.
        """
        wanted, size = check_split(split), DEFAULT_SIZE if size is None else size
        if size < 0 or seed < 0:
            raise DatasetError(f"{REASONING_GYM} needs a size and a seed of 0 or more, not size={size}, seed={seed}")
        rows: list[Row] = []
        used: set[str] = set()
        block, idle = seed * _BLOCK, 0
        while len(rows) < size:
            before = len(rows)
            for index, item in enumerate(self._batch(block)):
                question = str(item["question"])
                if len(rows) < size and question not in used and split_of(question) == wanted:
                    used.add(question)
                    rows.append(self._row(wanted, question, item["answer"], [block, index]))
            block += _BATCH  # a problem's seed is that of its batch plus its place
            idle = idle + 1 if len(rows) == before else 0
            if idle == _MAX_BATCHES_WITHOUT_NEW:
                raise DatasetError(
                    f"{REASONING_GYM}:{self.generator} has no more than {len(rows)} {wanted} problems at hand; lower "
                    "the size"
                )
        return TaskRows(rows)

    def draw(self, rng: Any, split: str, level: int) -> Row | None:
        """Return None: rows come from the generator, by `tasks`."""
        return None

    def start(self, task: Mapping[str, Any]) -> Episode:
        """Begin a task; it needs its `source`."""
        return _GymQuestion(task)

    @classmethod
    def training_defaults(cls, dataset: str, *, mixes: bool, whole_steps: bool) -> Mapping[str, Any]:
        """Return the defaults of episodes, without examples beside rewards: most rollouts answer here."""
        return super().training_defaults(dataset, mixes=False, whole_steps=whole_steps)

    def can_be_shown(self, task: Mapping[str, Any]) -> bool:
        """Return True if the generator knows the answer."""
        return bool(task.get("answer"))

    def _row(self, split: str, question: str, answer: Any, place: Sequence[int]) -> Row:
        source = {"generator": self.generator, "settings": self.settings, "seed": place[0], "index": place[1]}
        return {
            "id": f"{REASONING_GYM}-{self.generator}-{split}-{digest(question)[:12]}",
            "question": question,
            "answer": "" if answer is None else str(answer),
            "difficulty": 1,
            "source": source,
        }

    def _batch(self, block: int) -> Sequence[Mapping[str, Any]]:
        import reasoning_gym

        settings = {**self.settings, "seed": block, "size": _BATCH}
        try:
            with contextlib.redirect_stdout(sys.stderr):  # some generators print dots
                items = reasoning_gym.create_dataset(self.generator, **settings)
                return [items[index] for index in range(_BATCH)]
        except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise DatasetError(
                f"{REASONING_GYM}:{self.generator} cannot be made with {json.dumps(self.settings)}: {error}",
                setting="dataset",
            ) from error


class _GymQuestion(Episode):
    def __init__(self, task: Mapping[str, Any]) -> None:
        self._task = task
        self._source = dict(field_of(task, "source", REASONING_GYM))
        self._answer: str | None = None

    def receive(self, message: Mapping[str, Any]) -> list[Message]:
        """Take the one answer: all that follows the only "Answer:" of a message."""
        text = "" if message.get("tool_calls") else str(message.get("content") or "")
        before, mark, answer = text.partition(MARK)
        alone = mark and MARK not in answer and (not before or before.endswith("\n"))
        if alone and 0 < len(answer.strip()) <= _MAX_LONG_ANSWER:
            self._answer = answer.strip()
        return []

    def scores(self) -> dict[str, float]:
        """Return the score that the generator's own scorer gives, and whether there was an answer."""
        score = 0.0 if self._answer is None else score_of(self._source, self._answer)
        return {"reward": score, "answered": float(self._answer is not None)}

    def expert(self) -> Message:
        """Return the answer that the generator knows."""
        return assistant(f"{MARK} {field_of(self._task, 'answer', REASONING_GYM)}")


@cache
def generators() -> tuple[str, ...]:
    """Return the names of all generators.

    Raises:
        MissingPackageError: reasoning-gym is not installed.
    """
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise MissingPackageError(f"'{REASONING_GYM}'", "reasoning-gym", extra="recipes", setting="dataset") from error
    return tuple(sorted(DATASETS))
