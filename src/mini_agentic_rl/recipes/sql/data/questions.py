"""Questions with their gold queries and results, drawn from templates, and the conversation of the SQL agent.

The split of a question is the hash of the drugs, diseases and symptoms in it, so val and test ask about others than
train; without any, it is the hash of the template and its values. A quarter of val and test uses templates that train
never uses. Every gold query gives 1 to `MAX_ROWS` rows, without NULL and not only a count of 0. The same arguments give
the same rows on every machine.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Final, Literal

from ....datasets import DatasetError, Example, Form, Message, Row, Split, TaskRows, check_split, digest, split_of
from ....tools import text_tool
from ..tool import Cell, cell_text, rows_text, schema_text
from .database import CLASSES, DEPARTMENTS, FORMS, SYMPTOMS, YEARS, Name, connect_in_memory, entities

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Template:
    """One kind of question; `templates.toml` describes the fields."""

    name: str
    level: int
    takes: tuple[str, ...]
    english: tuple[str, ...]
    chinese: tuple[str, ...]
    sql: str
    held_out: bool = False
    ordered: bool = False


_TABLES: Final = tomllib.loads(files(__package__).joinpath("templates.toml").read_text(encoding="utf-8"))


def _template(name: str, table: Mapping[str, Any]) -> Template:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    return Template(name, **values)


TEMPLATES: Final = tuple(_template(name, table) for name, table in _TABLES.items())


# The agent, its tools and the examples to imitate all use these texts, so that examples have exactly the tokens that
# the agent sees. They are short, because a small model pays for every token.

QUERY_TOOL: Final = text_tool("query", "Run one SQLite SELECT.", "sql")
SCHEMA_TOOL: Final = text_tool("schema", "Show a table's columns and first rows.", "table")

SQL_TOOLS: Final = [QUERY_TOOL, SCHEMA_TOOL]
"""Tools of every call, also rendered into the prompt of an example."""

INSTRUCTIONS: Final = (
    'Answer from the SQLite database: call query with one SELECT, then reply "Answer: ..." with its result.'
)


def system_prompt(schema: str, hint: str = "") -> str:
    """Return the system prompt: the task, a hint about the database, and one line per table."""
    return "\n".join(part for part in (f"{INSTRUCTIONS} {hint}".strip(), schema) if part)


def opening(task: Mapping[str, Any], prompt: str) -> list[Message]:
    """Return the first messages of a rollout; `prompt` is the system prompt.

    Raises:
        ValueError: the task has no question.
    """
    return [{"role": "system", "content": prompt}, {"role": "user", "content": question_of(task)}]


def question_of(task: Mapping[str, Any]) -> str:
    """Return the question of a task.

    Raises:
        ValueError: the task has no question.
    """
    question = task.get("question")
    if not question:
        raise ValueError('a task of the SQL agent needs a "question"')
    return str(question)


def demonstration(task: Mapping[str, Any], prompt: str) -> list[Message]:
    """Return the messages of a correct rollout: the gold query, its rows, the answer.

    `task` needs `question`, `sql` and `rows`; `prompt` is the agent's system prompt.

    Raises:
        ValueError: the task lacks one of them.
    """
    if not task.get("sql") or not task.get("rows"):
        raise ValueError(f'row {task.get("id")!r}: a demonstration needs "sql" and the "rows" that it gives')
    arguments = json.dumps({"sql": task["sql"]}, ensure_ascii=False)
    name = QUERY_TOOL["function"]["name"]
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        *opening(task, prompt),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": rows_text(task["rows"])},
        {"role": "assistant", "content": answer_line(task["rows"])},
    ]


def answer_line(rows: Sequence[Sequence[Cell]]) -> str:
    """Return the reply for a result: "Answer: a; b" for two rows, "Answer: a, b" for two columns."""
    return f"Answer: {'; '.join(', '.join(map(cell_text, row)) for row in rows)}"


LEVELS: Final = (1, 2, 3, 4)
LANGUAGES: Final = ("en", "zh")
MAX_ROWS: Final = 12

_MAX_DRAWS: Final = 3000
_HELD_OUT_EVERY: Final = 4
_ENTITIES: Final = frozenset({"drug", "other_drug", "disease", "other_disease", "symptom", "other_symptom"})

HINT: Final = "All data are invented, no medical advice. In Chinese questions use the _zh columns."
"""Hint about the database in the system prompt."""
HIDDEN_TABLES: Final = ("meta",)
"""Tables that are not in the prompt."""

Language = Literal["en", "zh"]


class MedicalQuestions(TaskRows):
    """`size` different questions of one split, cycling through levels and languages.

    Each row has `id`, `question`, `language`, `difficulty` (its level), `template`, `held_out` (True if train does not
    use its template), `sql` (the gold query), `ordered` (True if the order of its rows counts), `rows` (its result) and
    `answer` (the result as text).
    """

    def __init__(
        self,
        split: str = "train",
        size: int = 1000,
        seed: int = 0,
        difficulty: int | Sequence[int] = LEVELS,
        languages: Sequence[Language] = LANGUAGES,
    ) -> None:
        """`difficulty` is one or several levels (see `Template.level`).

        Raises:
            DatasetError: an unknown split, level or language, a negative size, or a size above the number of questions.
        """
        self.split = check_split(split)
        levels = (difficulty,) if isinstance(difficulty, int) else tuple(difficulty)
        if not levels or not set(levels) <= set(LEVELS):
            raise DatasetError(f"difficulty must be one or more of the levels {LEVELS}, not {difficulty!r}")
        if not languages or not set(languages) <= set(LANGUAGES):
            raise DatasetError(f"languages must be one or more of {LANGUAGES}, not {languages!r}")
        if size < 0:
            raise DatasetError(f"size must be 0 or more, not {size}")
        drawn = _drawn(self.split, size, seed, levels, tuple(languages))
        super().__init__([{**row, "rows": [list(one) for one in row["rows"]]} for row in drawn])


@lru_cache(maxsize=8)
def _drawn(
    split: Split, size: int, seed: int, levels: tuple[int, ...], languages: tuple[Language, ...]
) -> tuple[Row, ...]:
    """Return the rows; cached, because each needs a query."""
    drawer = _Drawer(split, random.Random(f"medical/{split}/{seed}"))
    kinds = [(level, language) for level in levels for language in languages]
    return tuple(drawer.draw(index // len(kinds), *kinds[index % len(kinds)]) for index in range(size))


class _Drawer:
    """Draws rows without repeating a question."""

    def __init__(self, split: str, rng: random.Random) -> None:
        drugs, diseases = entities()
        self._values: dict[str, Sequence[Name]] = {
            "drug": drugs,
            "disease": diseases,
            "symptom": SYMPTOMS,
            "class": CLASSES,
            "form": FORMS,
            "department": DEPARTMENTS,
            "year": [Name(str(year), str(year)) for year in range(YEARS[0] + 5, YEARS[1] - 5)],
            "severity": [Name(str(severity), str(severity)) for severity in range(1, 6)],
        }
        self._split = split
        self._rng = rng
        self._used: set[str] = set()
        self._connection = connect_in_memory()

    def draw(self, round_: int, level: int, language: str) -> Row:
        """Return a row of this level and language; each fourth round of val and test uses a held-out template."""
        held_out = self._split != "train" and round_ % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1
        templates = [template for template in TEMPLATES if template.level == level and template.held_out == held_out]
        for _ in range(_MAX_DRAWS):
            row = self._try(self._rng.choice(templates), language)
            if row is not None and row["question"] not in self._used:
                self._used.add(row["question"])
                return row
        raise DatasetError(
            f"no further {self._split} question of level {level} found after {len(self._used)}; "
            "ask for a smaller size or more levels"
        )

    def _try(self, template: Template, language: str) -> Row | None:
        chosen = self._choose(template)
        names = sorted(value.en for kind, value in chosen.items() if kind in _ENTITIES)
        key = "|".join(names or [template.name, *(value.en for value in chosen.values())])
        if split_of(key) != self._split:
            return None
        texts = {kind: value.en if language == "en" else value.zh for kind, value in chosen.items()}
        phrasings = template.english if language == "en" else template.chinese
        question = self._rng.choice(phrasings).format(**texts)
        sql = template.sql.format(z="" if language == "en" else "_zh", **texts)
        rows = self._connection.execute(sql).fetchall()
        has_null = any(cell is None for row in rows for cell in row)
        if not 1 <= len(rows) <= MAX_ROWS or has_null or rows == [(0,)]:
            return None
        return {
            "id": f"medical-{self._split}-{digest(question)[:12]}",
            "question": question,
            "answer": "; ".join(", ".join(map(cell_text, row)) for row in rows),
            "sql": sql,
            "rows": [list(row) for row in rows],
            "ordered": template.ordered,
            "language": language,
            "difficulty": template.level,
            "template": template.name,
            "held_out": template.held_out,
        }

    def _choose(self, template: Template) -> dict[str, Name]:
        """Return a value for each field of a template; an `other_` field gets a different value of the same kind."""
        chosen: dict[str, Name] = {}
        for kind in template.takes:
            values = self._values[kind.removeprefix("other_")]
            taken = chosen.get(kind.removeprefix("other_"))
            chosen[kind] = self._rng.choice([value for value in values if value != taken])
        return chosen


@cache
def medical_prompt() -> str:
    """Return the system prompt of the SQL agent over the medical database."""
    with closing(connect_in_memory()) as connection:
        return system_prompt(schema_text(connection, HIDDEN_TABLES), HINT)


def medical_examples(rows: Sequence[Row], form: Form) -> list[Example]:
    """Return one example per row, with the agent's `tools`: for `sft` the gold query as a tool call, its rows and the
    answer; for `rl` the prompt, and the row with its gold query `sql`.

    Raises:
        DatasetError: another form.
    """
    if form not in ("sft", "rl"):
        raise DatasetError(f"medical has the forms sft and rl, not {form}", setting="dataset")
    prompt = medical_prompt()
    if form == "sft":
        return [{"messages": demonstration(row, prompt), "tools": SQL_TOOLS} for row in rows]
    return [{**row, "prompt": opening(row, prompt), "ground_truth": row["answer"], "tools": SQL_TOOLS} for row in rows]
