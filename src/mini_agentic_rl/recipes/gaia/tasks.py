"""GAIA (arXiv:2311.12983): questions for assistants with tools, from a local copy of its data set.

The data set is gated, so it is not downloaded. A copy is a folder with `metadata.jsonl` or `metadata.parquet` and the
files of the questions, or a clone of the repository, which has such a folder at `2023/validation`. Only that split has
answers; its questions are divided into splits by their hash.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...datasets import DatasetError, Row, TaskRows, choose, located, select

LEVELS: tuple[int, ...] = (1, 2, 3)
"""1 needs a few steps and at most one tool, 3 long chains of tools."""

_ANSWERED = Path("2023") / "validation"
_NO_ANSWER = ("", "?")


def load_gaia(
    path: str | Path,
    split: str = "train",
    size: int | None = None,
    seed: int = 0,
    *,
    levels: Sequence[int] = LEVELS,
) -> TaskRows:
    """Return rows with `id`, `question`, `answer`, `level`, and for questions about a file `file_name` and `file`, its
    path.

    Args:
        path: the local copy.
        split: "train", "val" or "test" (8 : 1 : 1, whatever levels are asked for), or "all".
        size: how many rows to draw; None takes all.
        seed: of the draw.
        levels: which of `LEVELS` to take.

    Raises:
        DatasetError: there is no such copy, it holds no answers, a row is malformed, or a file is missing.
    """
    unknown = [level for level in levels if level not in LEVELS]
    if unknown or not levels:
        raise DatasetError(f"levels must be one or more of {LEVELS}, not {tuple(levels)}")
    metadata = _metadata(Path(path))
    folder = metadata.parent
    rows = [_row(record, where, folder) for where, record in located(metadata)]
    answered = [row for row in rows if row["answer"] not in _NO_ANSWER]
    if not answered:
        raise DatasetError(
            f"{folder}: no question has an answer; give the folder of the validation split", setting="data_dir"
        )
    chosen = select({"validation": answered}, split, lambda row: str(row["question"]))
    return choose([row for row in chosen if row["level"] in levels], size, seed)


def _metadata(path: Path) -> Path:
    for folder in (path, path / "validation", path / _ANSWERED):
        for file in (folder / "metadata.jsonl", folder / "metadata.parquet"):
            if file.is_file():
                return file
    raise DatasetError(
        f"{path} holds no metadata.jsonl or metadata.parquet, nor does {_ANSWERED} in it; give a local "
        "copy of the data set gaia-benchmark/GAIA (accept its terms on the Hugging Face Hub, then download it)",
        setting="data_dir",
    )


def _row(record: Mapping[str, Any], where: str, folder: Path) -> Row:
    question = record.get("Question")
    if not isinstance(question, str) or not question.strip():
        raise DatasetError(f'{where}: field "Question" is missing or empty')
    level = str(record.get("Level"))
    if level not in map(str, LEVELS):
        raise DatasetError(f'{where}: field "Level" must be one of {LEVELS}, not {level!r}')
    answer = record.get("Final answer")
    row: Row = {
        "id": str(record.get("task_id") or where),
        "question": question,
        "answer": "" if answer is None else str(answer).strip(),
        "level": int(level),
        "file_name": "",
        "file": "",
    }
    name = str(record.get("file_name") or "")
    if name:
        file = folder / name
        if Path(name).name != name or not file.is_file():
            raise DatasetError(f'{where}: field "file_name" names {name!r}, which is not beside the metadata')
        row |= {"file_name": name, "file": str(file.resolve())}
    return row


# GAIA's score of an answer: quasi exact match (Mialon et al. 2023, arXiv:2311.12983, and its leaderboard's rules).
#
# The form of the right answer decides how answers are compared:
#
# - a number: as numbers, without "$", "%" and thousands commas in the given answer;
# - a list (it has a comma or a semicolon): item by item, in order; numbers as numbers, other items as text with
#   punctuation;
# - other text: without white space, punctuation and upper case.


MARKER = "FINAL ANSWER:"
"""Marker that the benchmark asks for before an answer."""

_ANSWER = re.compile(rf"{re.escape(MARKER)}[ \t]*\n?([^\n]*)", re.IGNORECASE)
_SEPARATORS = re.compile("[,;]")
_UNITS = str.maketrans("", "", "$%,")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def final_answer(text: str) -> str | None:
    """Return the text after the last "FINAL ANSWER:" on its line, or on the next line if this one ends there; None
    without it. Emphasis and enclosing brackets are removed.
    """
    answers = _ANSWER.findall(text)
    if not answers:
        return None
    answer = str(answers[-1]).strip().strip("*`").strip()
    if answer.startswith("[") and answer.endswith("]"):
        answer = answer[1:-1].strip()
    return answer or None


def is_right(answer: str | None, gold: str) -> bool:
    """Return True if `answer` scores for a question whose answer is `gold`. None, no answer, is wrong."""
    if answer is None:
        return False
    if _number(gold) is not None:
        return _same_number(answer, gold)
    if _SEPARATORS.search(gold):
        given, wanted = _SEPARATORS.split(answer), _SEPARATORS.split(gold)
        return len(given) == len(wanted) and all(
            _same_number(item, right) if _number(right) is not None else _letters(item) == _letters(right)
            for item, right in zip(given, wanted, strict=True)
        )
    return _letters(answer).translate(_PUNCTUATION) == _letters(gold).translate(_PUNCTUATION)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _same_number(answer: str, gold: str) -> bool:
    return _number(answer.translate(_UNITS)) == _number(gold)


def _letters(text: str) -> str:
    """Without white space and upper case."""
    return "".join(text.split()).lower()
