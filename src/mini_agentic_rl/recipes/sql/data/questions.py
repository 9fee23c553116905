"""Questions with their gold queries and what these give, drawn from the templates.

A question about a drug, a disease or a symptom belongs to the split that a hash of these names says, so that val and
test ask about others than train; one about kinds alone, to that of the template and the kinds. A quarter of val and
test are templates that train never asks. Every gold query gives a result: at least one row, no NULL, no count of 0, and
at most `MAX_ROWS` rows. The same arguments give the same rows on every machine.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from functools import cache, lru_cache
from typing import Any, Final, Literal, TypeAlias

from ....datasets import DatasetError, Example, Form, Row, Split, TaskRows, check_split, digest, split_of
from .database import CLASSES, DEPARTMENTS, FORMS, SYMPTOMS, YEARS, Name, connect_in_memory, entities
from .templates import TEMPLATES, Template

# The conversation of a model with a SQL database: prompt, tools, results, and how it goes when it goes well.
#
# The agent, its tools and the examples to imitate take their words from here, so that what is imitated is token by
# token what the agent then sees. All of it is short: a small model pays for every token, and the lines of the schema
# are enough to write a query.


Cell: TypeAlias = int | float | str | None
"""A value as models see it. What SQLite holds as bytes is a text that tells how many."""
Message: TypeAlias = dict[str, Any]


def _tool(name: str, description: str, argument: str) -> dict[str, Any]:
    """Return an OpenAI function that takes one text."""
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


QUERY_TOOL: Final = _tool("query", "Run one SQLite SELECT.", "sql")
SCHEMA_TOOL: Final = _tool("schema", "Show a table's columns and first rows.", "table")

SQL_TOOLS: Final = [QUERY_TOOL, SCHEMA_TOOL]
"""Tools to send with every call, and to render into the prompt of an example."""

INSTRUCTIONS: Final = (
    'Answer from the SQLite database: call query with one SELECT, then reply "Answer: ..." with its result.'
)


def system_prompt(schema: str, hint: str = "") -> str:
    """Return the system prompt: the task, a hint about the database, and its tables, one a line."""
    return "\n".join(part for part in (f"{INSTRUCTIONS} {hint}".strip(), schema) if part)


def schema_text(connection: sqlite3.Connection, leave_out: Collection[str] = ()) -> str:
    """Return one line a table, as in `drug(id,name,price)`."""
    tables = [table for table in table_names(connection) if table not in leave_out]
    return "\n".join(f"{table}({','.join(_columns(connection, table))})" for table in tables)


def table_names(connection: sqlite3.Connection) -> list[str]:
    """Tables and views, in the order of their making; SQLite's own are left out."""
    found = connection.execute(
        "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' "
        "ORDER BY rowid"
    )
    return [str(name) for (name,) in found]


def quoted(name: str) -> str:
    """Return a name as SQLite reads it."""
    return '"' + name.replace('"', '""') + '"'


def opening(task: Mapping[str, Any], prompt: str) -> list[Message]:
    """Return the messages that a rollout begins with; `prompt` is the first one.

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
    """Return the messages of a rollout as it should be: the gold query, its rows, the answer.

    `task` needs `question`, `sql` and `rows`; `prompt` is the first message, as the agent sends it.

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


def rows_text(rows: Sequence[Sequence[Cell]]) -> str:
    """Return one row a line, its values with " | " between them."""
    return "\n".join(" | ".join(map(cell_text, row)) for row in rows)


def answer_line(rows: Sequence[Sequence[Cell]]) -> str:
    """Return the reply that states a result: "Answer: a; b" for two rows, "Answer: a, b" for two columns."""
    return f"Answer: {'; '.join(', '.join(map(cell_text, row)) for row in rows)}"


def cell_text(cell: Cell) -> str:
    """Return a value as it is shown: NULL, a number with at most ten digits, or the text itself."""
    if cell is None:
        return "NULL"
    return f"{cell:.10g}" if isinstance(cell, float) else str(cell)


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [str(row[1]) for row in connection.execute(f"PRAGMA table_info({quoted(table)})")]


LEVELS: Final = (1, 2, 3, 4)
LANGUAGES: Final = ("en", "zh")
MAX_ROWS: Final = 12

_MAX_DRAWS: Final = 3000
_HELD_OUT_EVERY: Final = 4
_ENTITIES: Final = frozenset({"drug", "other_drug", "disease", "other_disease", "symptom", "other_symptom"})

HINT: Final = "All data are invented, no medical advice. In Chinese questions use the _zh columns."
"""Hint about the database in the system prompt."""
HIDDEN_TABLES: Final = ("meta",)
"""Tables that the prompt does not mention."""

Language = Literal["en", "zh"]


class MedicalQuestions(TaskRows):
    """`size` different questions of one split, which take turns over levels and languages.

    Each row holds `id`, `question`, `language`, `difficulty` (its level), `template`, `held_out` (whether train lacks
    its template), `sql` (the gold query), `ordered` (whether the order of its rows counts), `rows` (what it gives) and
    `answer` (the same as a text).
    """

    def __init__(
        self,
        split: str = "train",
        size: int = 1000,
        seed: int = 0,
        difficulty: int | Sequence[int] = LEVELS,
        languages: Sequence[Language] = LANGUAGES,
    ) -> None:
        """`difficulty` is a level, or several levels that take turns (see `Template.level`).

        Raises:
            DatasetError: an unknown split, level or language, a negative size, or a size beyond what there is to ask.
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
    """Return the rows, kept for the next time: a query is run for each."""
    drawer = _Drawer(split, random.Random(f"medical/{split}/{seed}"))
    kinds = [(level, language) for level in levels for language in languages]
    return tuple(drawer.draw(index // len(kinds), *kinds[index % len(kinds)]) for index in range(size))


class _Drawer:
    """Draws rows that were not there before."""

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
        """Return a row of this level and language; each fourth round of val and test asks what train never asks."""
        held_out = self._split != "train" and round_ % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1
        templates = [found for found in TEMPLATES if found.level == level and found.held_out == held_out]
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
        if not is_worth_asking(rows):
            return None
        return {
            "id": f"medical-{self._split}-{digest(question)[:12]}",
            "question": question,
            "answer": "; ".join(", ".join(map(_text, row)) for row in rows),
            "sql": sql,
            "rows": [list(row) for row in rows],
            "ordered": template.ordered,
            "language": language,
            "difficulty": template.level,
            "template": template.name,
            "held_out": template.held_out,
        }

    def _choose(self, template: Template) -> dict[str, Name]:
        """Return a value for each thing to fill in; an `other_` one is of the same kind and another."""
        chosen: dict[str, Name] = {}
        for kind in template.takes:
            values = self._values[kind.removeprefix("other_")]
            taken = chosen.get(kind.removeprefix("other_"))
            chosen[kind] = self._rng.choice([value for value in values if value != taken])
        return chosen


@cache
def medical_prompt() -> str:
    """Return the first message of the SQL agent over the medical database."""
    with closing(connect_in_memory()) as connection:
        return system_prompt(schema_text(connection, HIDDEN_TABLES), HINT)


def medical_examples(rows: Sequence[Row], form: Form) -> list[Example]:
    """Return one example a row, with the agent's `tools`: `sft`, the gold query as the call of a tool, its rows, the
    answer; `rl`, the prompt, and the row with its gold query `sql`.

    Raises:
        DatasetError: another form.
    """
    if form not in ("sft", "rl"):
        raise DatasetError(f"medical has the forms sft and rl, not {form}", setting="dataset")
    prompt = medical_prompt()
    if form == "sft":
        return [{"messages": demonstration(row, prompt), "tools": SQL_TOOLS} for row in rows]
    return [{**row, "prompt": opening(row, prompt), "ground_truth": row["answer"], "tools": SQL_TOOLS} for row in rows]


def is_worth_asking(rows: Sequence[Sequence[Any]]) -> bool:
    """Return True if a result is an answer: it says something, and not too much."""
    return 1 <= len(rows) <= MAX_ROWS and all(cell is not None for row in rows for cell in row) and rows != [(0,)]


def _text(cell: Any) -> str:
    return f"{cell:.10g}" if isinstance(cell, float) else str(cell)
