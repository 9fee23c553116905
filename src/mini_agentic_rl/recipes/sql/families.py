"""The task families of the SQL agent: `sql` itself, and `medical`, the generated questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ...datasets import DEFAULT_SIZE, Example, Form, TaskFamily, TaskRows, check_split
from ...environments import Recipe


class Sql(TaskFamily):
    """The SQL agent, which takes the tasks of files with gold queries as well."""

    name: ClassVar[str] = "sql"
    agent: ClassVar[str] = "sql"
    dataset: ClassVar[str] = "medical"
    is_open: ClassVar[bool] = True
    max_new_tokens: ClassVar[int] = 96

    def recipe(self) -> Recipe:
        """Return the SQL agent over the medical database."""
        from .agent import sql_recipe

        return sql_recipe()

    @classmethod
    def training_defaults(cls, dataset: str, *, mixes: bool, whole_steps: bool) -> Mapping[str, Any]:
        """Return the defaults of `train-sql`."""
        from .job import SQL_DEFAULTS

        return SQL_DEFAULTS

    @classmethod
    def train_config(cls) -> type[Any]:
        """Return the configuration of `train-sql`."""
        from .job import SqlTrainConfig

        return SqlTrainConfig


class Medical(Sql):
    """Generated questions about an invented medical database."""

    name: ClassVar[str] = "medical"
    dataset: ClassVar[str] = "medical"
    levels: ClassVar[tuple[int, ...]] = (1, 2, 3, 4)
    training_size: ClassVar[int | None] = 2000

    def tasks(
        self, split: str, size: int | None = None, seed: int = 0, levels: Sequence[int] | None = None
    ) -> TaskRows:
        """Return questions whose levels take turns; see `MedicalQuestions`."""
        from .data import MedicalQuestions

        wanted = check_split(split)
        return MedicalQuestions(wanted, DEFAULT_SIZE if size is None else size, seed, self.levels_of(levels))

    def examples(self, rows: Sequence[Mapping[str, Any]], form: Form, seed: int = 0) -> list[Example]:
        """Return the conversations of the SQL agent; see `medical_examples`."""
        from .data import medical_examples

        return medical_examples([dict(row) for row in rows], form)
