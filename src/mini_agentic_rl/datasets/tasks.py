"""Tasks from files, folders and the Hugging Face Hub: a `question`, an `answer`, and whatever else there is.

An answer is text, a number, true or false, or a list of these; a worked solution that ends in "#### 42", as GSM8K has
it, gives the answer 42 and keeps the text as `solution`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .formats import task_example
from .json_text import with_json_read
from .records import Located, is_data_file, is_hub_name, load_folder, load_hub, located, stem
from .rows import DatasetError, Row, TaskRows, choose, final_answer, select
from .turns import ShapeError


def load_jsonl(path: str | Path) -> list[Row]:
    """Return every row of a file, in order. Blank lines are skipped; a row without `id` is called after its line.

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
    record = dict(with_json_read(record))
    if not isinstance(record.get("question"), str) or "answer" not in record:
        record = _renamed(record)
    question = record.get("question")
    if not isinstance(question, str) or not question.strip():
        raise DatasetError(f'{where}: field "question" {_complaint(record, "question", "text")}', setting="dataset")
    answer = final_answer(record.get("answer"))
    if answer is None:
        raise DatasetError(
            f'{where}: field "answer" {_complaint(record, "answer", "text, a number or a list of these")}',
            setting="dataset",
        )
    if not answer:
        raise DatasetError(f'{where}: field "answer" has nothing after its "####"', setting="dataset")
    row = {**record, "id": str(record.get("id", default_id)), "answer": answer}
    if isinstance(record["answer"], str) and "####" in record["answer"]:
        row["solution"] = record["answer"].strip()
    return row


def _renamed(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record with a question and an answer that it has under other names, where it has them."""
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


def load_tasks_of(source: str | Path, split: str, size: int | None, seed: int) -> TaskRows:
    """Return rows with `id`, `question` and `answer` of one split, or of all.

    Raises:
        DatasetError: there is no such file, folder or data set, or a record is no task.
    """
    return choose(
        select(task_rows(load_parts(source), stem(Path(source))), split, lambda row: str(row["question"])), size, seed
    )


def load_parts(source: str | Path) -> dict[str, list[Located]]:
    """Return the records of a file, of a folder's files or of a data set on the Hub, by split.

    Raises:
        DatasetError: there is no such thing, or it cannot be read.
    """
    path, name = Path(source), str(source)
    if path.is_dir():
        return load_folder(path)
    if path.is_file() or is_data_file(path):
        return {"all": located(path)}
    if is_hub_name(name):
        return load_hub(name)
    raise DatasetError(f"{name}: no such file or folder", setting="dataset")


def task_rows(parts: Mapping[str, Sequence[Located]], name: str) -> dict[str, list[Row]]:
    """Return each record as a task; one without `id` is called after `name`, or after its split, and its place.

    Raises:
        DatasetError: a record is no task.
    """
    return {
        part: [as_row(record, where, f"{name if part == 'all' else part}-{number}")
               for number, (where, record) in enumerate(records, 1)]
        for part, records in parts.items()
    }  # fmt: skip
