"""The task families of the math agent: `math` itself, `arithmetic`, `gsm8k` and `gsm_symbolic`.

GSM8K (arXiv:2110.14168) comes from the Hugging Face Hub or a local copy. GSM-Symbolic (arXiv:2410.05229) is generated
by reasoning-gym, and divided into splits by the hash of the question.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from ...datasets import (
    DEFAULT_SIZE,
    SHORT_IMITATION,
    SPLITS,
    TRANSFER,
    ChatTools,
    DatasetError,
    Example,
    Form,
    Row,
    TaskFamily,
    TaskRows,
    assistant,
    check_split,
    digest,
    load_task_dataset,
    split_of,
    unpaired_of,
)
from ...environments import Recipe
from ...errors import MissingPackageError
from .arithmetic import ArithmeticDataset
from .demonstrations import MAX_TURNS, SYSTEM_PROMPT, TEXT_PROMPT, TOOLS, demonstration, opening, tools_for, use_tool
from .stories import LEVELS
from .worked import Case, Worked, corrupted, worked_solution

GENERATED_TURNS: Final = 6
"""Model calls on generated arithmetic: one to four calculations, and the answer. Early in a training some rollouts
never stop calling; with ten calls, these few more than double the time of a step."""

HUB_NAME: Final = "openai/gsm8k:main"
LOCAL_GSM8K: Final = "./gsm8k"
"""Folder of a local copy, below the working directory."""

_BLOCK: Final = 1_000_000
"""Seeds of the generator from one `seed` to the next."""
_BATCH: Final = 1000
_MAX_BATCHES_WITHOUT_NEW: Final = 50

_ARITHMETIC: Final[Mapping[str, Any]] = {
    "loop.total_steps": 6,
    "loop.tasks_per_step": 12,
    "loop.tool_format": "compact",
    "lora.r": 16,
    "learner.warmup_steps": 0,
    "learner.learning_rate": 2e-4,
    "learner.max_batch_tokens": 650,
    "warm_start.examples": 2048,
    "warm_start.until": "examples",
    "warm_start.learning_rate": 2e-3,
    "warm_start.batch_size": 8,
    "warm_start.schedule": "linear",
}
"""Training settings for generated arithmetic. The model first imitates many different stories, so that it can read new
ones; a few would teach only the form of a call. Then it is reinforced briefly at a low, falling rate: a higher rate
destroys what it has learnt, and a minute of imitation adds more here than a minute of reinforcement. The compact tool
format fits a third more examples into a minute."""


class Math(TaskFamily):
    """The math agent, which takes the tasks of any family and file with questions and answers."""

    name: ClassVar[str] = "math"
    agent: ClassVar[str] = "math"
    dataset: ClassVar[str] = "arithmetic"
    is_open: ClassVar[bool] = True
    max_turns: ClassVar[int] = MAX_TURNS

    def examples(self, rows: Sequence[Mapping[str, Any]], form: Form, seed: int = 0) -> list[Example]:
        """Return the examples of one form; see `examples_of_tasks`."""
        return examples_of_tasks([dict(row) for row in rows], form, seed)

    def recipe(self) -> Recipe:
        """Return the math agent with its reward and demonstrations."""
        from .agent import math_recipe

        return math_recipe(max_turns=self.max_turns)

    def chat(self) -> ChatTools:
        """Return the agent's prompt and calculator."""
        return ChatTools(SYSTEM_PROMPT, TOOLS, use_tool, MAX_TURNS)

    @classmethod
    def training_defaults(cls, dataset: str, *, mixes: bool, whole_steps: bool) -> Mapping[str, Any]:
        """Return the default settings for generated arithmetic, or those for other tasks."""
        return _ARITHMETIC if dataset.partition(":")[0] == Arithmetic.name else SHORT_IMITATION


class Arithmetic(Math):
    """Generated word problems of one to four operations."""

    name: ClassVar[str] = "arithmetic"
    dataset: ClassVar[str] = "arithmetic"
    levels: ClassVar[tuple[int, ...]] = LEVELS
    splits: ClassVar[tuple[str, ...]] = (*SPLITS, TRANSFER)
    measures_transfer: ClassVar[bool] = True
    training_size: ClassVar[int | None] = 10_000
    max_turns: ClassVar[int] = GENERATED_TURNS
    max_new_tokens: ClassVar[int] = 48

    def tasks(
        self, split: str, size: int | None = None, seed: int = 0, levels: Sequence[int] | None = None
    ) -> TaskRows:
        """Return problems that cycle through the levels; see `ArithmeticDataset`."""
        return ArithmeticDataset(split, DEFAULT_SIZE if size is None else size, seed, self.levels_of(levels))


class GSM8K(Math):
    """The published problems of GSM8K."""

    name: ClassVar[str] = "gsm8k"
    dataset: ClassVar[str] = "gsm8k"
    training_size: ClassVar[int | None] = None

    def tasks(
        self, split: str, size: int | None = None, seed: int = 0, levels: Sequence[int] | None = None
    ) -> TaskRows:
        """Return rows with the worked `solution`, from the folder `LOCAL_GSM8K` if it exists, else from the Hub.

        "test" is the published test set, "val" a tenth of the published training set, "train" the rest.

        Raises:
            DatasetError: an unknown split, a malformed file, or no access to the Hub.
        """
        wanted = check_split(split)
        if Path(LOCAL_GSM8K).is_dir():
            return load_task_dataset(LOCAL_GSM8K, wanted, size, seed)
        try:
            return load_task_dataset(HUB_NAME, wanted, size, seed)
        except DatasetError as error:
            raise DatasetError(
                f"{error.text}, as the folder {LOCAL_GSM8K} or by its path", setting=error.setting
            ) from error


class GSMSymbolic(Math):
    """Problems of GSM-Symbolic, generated by reasoning-gym."""

    name: ClassVar[str] = "gsm_symbolic"
    dataset: ClassVar[str] = "gsm_symbolic"

    def tasks(
        self, split: str, size: int | None = None, seed: int = 0, levels: Sequence[int] | None = None
    ) -> TaskRows:
        """Return `size` different problems of one split with a worked `solution`, at difficulty 1.0, the only one that
        the generator supports.

        Raises:
            DatasetError: an unknown split, a negative size or seed, or a size above the number of problems.
            MissingPackageError: reasoning-gym is not installed (extra "recipes").
        """
        wanted, size = check_split(split), DEFAULT_SIZE if size is None else size
        if size < 0 or seed < 0:
            raise DatasetError(f"gsm_symbolic needs a size and a seed of 0 or more, not size={size}, seed={seed}")
        try:
            import reasoning_gym
        except ImportError as error:
            raise MissingPackageError("'gsm_symbolic'", "reasoning-gym", extra="recipes", setting="dataset") from error
        rows: list[Row] = []
        used: set[str] = set()
        block, idle = seed * _BLOCK, 0
        while len(rows) < size:
            before = len(rows)
            for item in reasoning_gym.create_dataset("gsm_symbolic", seed=block, size=_BATCH):
                if len(rows) == size:
                    break
                question = item["question"]
                if question not in used and split_of(question) == wanted:
                    used.add(question)
                    rows.append(
                        {
                            "id": f"gsm_symbolic-{wanted}-{digest(question)[:12]}",
                            "question": question,
                            "answer": str(item["answer"]),
                            "solution": item["metadata"]["answer_cot"],
                            "difficulty": 1,
                        }
                    )
            block += _BATCH  # a problem draws its numbers by the seed of its batch plus its place
            idle = idle + 1 if len(rows) == before else 0
            if idle == _MAX_BATCHES_WITHOUT_NEW:
                raise DatasetError(
                    f"gsm_symbolic has no more than {len(rows)} {wanted} problems at hand; lower the size"
                )
        return TaskRows(rows)


def examples_of_tasks(rows: Sequence[Row], form: Form, seed: int) -> list[Example]:
    """Return one example per row; for `unpaired` two, a right one and a wrong one.

    Demonstrations and prompts for rewards are conversations with the calculator, unless a row has the style "text";
    preferences are between two written solutions.

    Raises:
        ValueError: no preference can be made of a row, because its answer is no number and it has no working.
    """
    if form == "rl":
        return [{**row, "prompt": opening(row), "ground_truth": str(row["answer"]), **_offered(row)} for row in rows]
    if form == "sft":
        return [{"messages": demonstration(row), **_offered(row)} for row in rows]
    solutions = [worked_solution(row) for row in rows]
    pairs = [_pair(row, solutions, at, seed) for at, row in enumerate(rows)]
    return pairs if form == "preference" else [example for pair in pairs for example in unpaired_of(pair)]


def _offered(row: Row) -> dict[str, Any]:
    """Return the column `tools`, if a row has any."""
    tools = tools_for(row)
    return {"tools": tools} if tools else {}


def _pair(row: Row, solutions: Sequence[Worked], at: int, seed: int) -> dict[str, Any]:
    rng = random.Random(f"preference/{seed}/{row['id']}")
    other = solutions[(at + 1) % len(solutions)]
    rejected, corruption = corrupted(rng, Case(row, solutions[at], other))
    return {
        "prompt": opening(row, TEXT_PROMPT),
        "chosen": [assistant(solutions[at].text)],
        "rejected": [assistant(rejected)],
        "fault": corruption,
    }
