"""Tasks of a file: one object a line with a `question` and an `answer`; other fields come along.

An answer is text, a number, true or false, or a list of these; a worked solution that ends in "#### 42", as GSM8K has
it, gives the answer 42 and keeps the text as `solution`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .forms import task_example
from .messages import ShapeError
from .records import located, stem
from .rows import DatasetError, Row


def load_jsonl(path: str | Path) -> list[Row]:
    """Every row of a file, in order. Blank lines are skipped; a row without `id` is called after its line.

    Raises:
        DatasetError: the file is missing, unreadable or empty, a line is no JSON object, or a row lacks its question or
            its answer. The message names the file, the line and the field.
    """
    path = Path(path)
    return [as_row(record, where, f"{stem(path)}-{where.rpartition(' ')[2]}") for where, record in located(path)]


def as_row(record: dict[str, Any], where: str, default_id: str) -> Row:
    """`record` as a task; `where` begins the message of an error.

    Raises:
        DatasetError: the question or the answer is missing, empty or of a wrong type.
    """
    if "question" not in record or "answer" not in record:
        record = _renamed(record)
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


def _renamed(record: dict[str, Any]) -> dict[str, Any]:
    """The record with a question and an answer that it has under other names, where it has them."""
    try:
        example = task_example(record, "")
    except ShapeError:
        return record
    return {**record, "question": example["question"], "answer": record.get("answer", example["answer"])}


def _complaint(record: dict[str, Any], field: str, wanted: str) -> str:
    if field not in record:
        return "is missing"
    value = record[field]
    empty = value is None or (isinstance(value, str) and not value.strip()) or value == []
    return "is empty" if empty else f"must be {wanted}, not {type(value).__name__}"
