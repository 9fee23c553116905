"""JSON Lines: one object a line with a `question` and an `answer`; other fields come along.

An answer is text, a number, true or false, or a list of these; a worked solution that ends in "#### 42", as GSM8K has
it, gives the answer 42 and keeps the text as `solution`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .rows import DatasetError, Row


def load_jsonl(path: str | Path) -> list[Row]:
    """Every row of a file, in order. Blank lines are skipped; a row without `id` is called after its line.

    Raises:
        DatasetError: the file is missing, unreadable or empty, a line is no JSON object, or a row lacks its question or
            its answer. The message names the file, the line and the field.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise DatasetError(f"--dataset {path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DatasetError(f"--dataset {path}: cannot be read ({error})") from error
    rows = [_row(line, f"--dataset {path}, line {number}", f"{path.stem}-{number}")
            for number, line in enumerate(lines, 1) if line.strip()]  # fmt: skip
    if not rows:
        raise DatasetError(f"--dataset {path}: holds no rows")
    return rows


def as_row(record: dict[str, Any], where: str, default_id: str) -> Row:
    """`record` as a task; `where` begins the message of an error.

    Raises:
        DatasetError: the question or the answer is missing, empty or of a wrong type.
    """
    question = record.get("question")
    if not isinstance(question, str) or not question.strip():
        raise DatasetError(f'{where}: field "question" {_complaint(record, "question", "text")}')
    answer = record.get("answer")
    if isinstance(answer, list) and answer and all(isinstance(item, str | int | float) for item in answer):
        return {**record, "id": str(record.get("id", default_id)), "answer": "[" + ", ".join(map(str, answer)) + "]"}
    if not isinstance(answer, str | int | float) or not str(answer).strip():
        raise DatasetError(
            f'{where}: field "answer" {_complaint(record, "answer", "text, a number or a list of these")}'
        )
    text = str(answer).strip()
    row = {**record, "id": str(record.get("id", default_id)), "answer": text}
    if "####" in text:
        row["answer"] = text.rpartition("####")[2].strip().replace(",", "")
        row["solution"] = text
        if not row["answer"]:
            raise DatasetError(f'{where}: field "answer" has nothing after its "####"')
    return row


def _row(line: str, where: str, default_id: str) -> Row:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{where}: not valid JSON ({error})") from error
    if not isinstance(record, dict):
        raise DatasetError(f'{where}: must be an object with "question" and "answer", not {type(record).__name__}')
    return as_row(record, where, default_id)


def _complaint(record: dict[str, Any], field: str, wanted: str) -> str:
    if field not in record:
        return "is missing"
    value = record[field]
    empty = value is None or (isinstance(value, str) and not value.strip()) or value == []
    return "is empty" if empty else f"must be {wanted}, not {type(value).__name__}"
