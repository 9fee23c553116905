"""Tasks and training examples by the name or path of a data set: of a recipe, a plugin, a file, a folder, or the Hub.

No question is in two splits: what was not published in splits is divided by the hash of the question (`rows.select`),
whatever the form, the order and the seed. So nothing imitated from `train` is a task or a preference of `test`.

A task has a `question` and an `answer`: text, a number, true or false, or a list of these. A worked solution that ends
in "#### 42", as in GSM8K, gives the answer 42 and is kept as `solution`. Tasks become examples of every form:
demonstrations, prompts for rewards, right against wrong. The rejected answer of a preference is the right solution with
one corruption, whose name the row has as `fault`. Draws depend on the task and the seed only.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from ..errors import UserError
from ..metrics import counted
from ..plugins import load_plugin, or_plugin, plugin_has
from ..user_code import load_object
from .families import MATH, family_type, find_family, task_names
from .formats import FORMS, Example, Form, examples_of, prompt_key, task_example
from .preferences import with_json_read
from .records import SUFFIXES, Located, is_data_file, is_hub_name, load_folder, load_hub, located, stem
from .rows import SPLITS, DatasetError, Row, TaskRows, choose, digest, final_answer, meant, select
from .turns import ShapeError

logger = logging.getLogger(__name__)

_MOST = 64


def named_options(text: str, *, setting: str) -> tuple[str, dict[str, Any]]:
    """Return a name and the options behind its question mark.

    Args:
        setting: the field whose value the text is.

    Raises:
        UserError: an option is not written so.
    """
    name, _, options = text.partition("?")
    try:
        pairs = parse_qsl(options, keep_blank_values=True, strict_parsing=bool(options), max_num_fields=_MOST)
    except ValueError as error:
        raise UserError(f"{text}: options are written as ?key=value&key=value ({error})", setting=setting) from error
    return name, {key: _value(value) for key, value in pairs}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


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


TEXT = "text"
"""The style of a row without tools, and the word before the name of a data set that asks for it: "text:gsm8k"."""


def split_style(name: str) -> tuple[str, bool]:
    """Return the name of a data set without "text:" before it, and whether that was there."""
    prefix, colon, rest = name.partition(":")
    return (rest, True) if prefix == TEXT and colon and rest else (name, False)


def in_text(rows: Sequence[Row]) -> TaskRows:
    """Return the rows in the style without tools."""
    return TaskRows([{**row, "style": TEXT} for row in rows])


def splits_of(name_or_path: str | Path) -> tuple[str, ...]:
    """Return the splits of a task data set, those to train on first."""
    family = family_type(split_style(str(name_or_path))[0])
    return SPLITS if family is None else family.splits


def load_task_dataset(
    name_or_path: str | Path, split: str = "train", size: int | None = None, seed: int = 0
) -> TaskRows:
    """Return rows with `id`, `question` and `answer`.

    `name_or_path` is the name of a task family (`arithmetic:1,2` has problems of these levels only), the name of a
    plugin, a file (.jsonl, .json, .csv, .tsv or .parquet), a folder with files named for their splits, or `owner/name`
    on the Hugging Face Hub. What has no published splits is divided by its questions into train, val and test
    (8 : 1 : 1); the split "all", for everything that is not generated, takes every row. "text:" before the name asks
    for answers in words: the rows have the `style` "text", by which the math agent offers no calculator. Without a
    `size`, generated data sets have 1,000 rows and others all they hold.

    Raises:
        DatasetError: no such data set, split or file, or a malformed one.
        MissingPackageError: the extra that the data set needs is not installed.
    """
    name, as_text = split_style(str(name_or_path))
    family = find_family(name)
    if family is not None and split == "all":
        choices = ", ".join(family.splits)
        raise DatasetError(f'{name}: the split "all" is for files; choose one of {choices}', setting="dataset")
    if family is not None:
        rows = family.tasks(split, size, seed)
    elif is_plugged(name):
        rows = _plugged(name, split, size, seed)
    else:
        check_exists(name)
        rows = load_tasks_of(name, split, size, seed)
    return in_text(rows) if as_text else rows


def exists(name: str) -> bool:
    """Return True for a file, a folder or a name on the Hub."""
    path = Path(name)
    return path.exists() or is_data_file(path) or is_hub_name(name)


def check_exists(name: str) -> None:
    """Do nothing for a file, a folder or a name on the Hub.

    Raises:
        DatasetError: `name` is none of these.
    """
    if not exists(name):
        names = task_names()
        raise DatasetError(
            f"{name!r} does not exist{meant(name, names)}; choose {', '.join(names)}, or give a file "
            f"({', '.join(SUFFIXES)}), a folder, owner/name on the Hugging Face Hub, or for examples module:function"
            f"{or_plugin('datasets')}",
            setting="dataset",
        )


def is_plugged(name: str) -> bool:
    """Return True for a name that is no file here and that a plugin offers, with or without what follows a colon."""
    return not Path(name).exists() and plugin_has("datasets", name.partition(":")[0])


def _plugged(name: str, split: str, size: int | None, seed: int) -> TaskRows:
    """Return the rows of a plugin, which is called with split, size and seed, and with the text after a colon as
    `name` where there is one."""
    known, _, rest = name.partition(":")
    load = load_plugin("datasets", known, setting="dataset")
    more = {"name": rest} if rest else {}
    try:
        rows = [] if load is None else list(load(split=split, size=size, seed=seed, **more))
        return TaskRows(
            [as_row(dict(row), f"{name}: row {at}", f"{known}-{split}-{at}") for at, row in enumerate(rows)]
        )
    except UserError:
        raise
    except Exception as error:  # the plugin's code may fail in any way
        raise DatasetError(f"{name!r} gives no rows: {type(error).__name__}: {error}", setting="dataset") from error


def is_worked(record: Mapping[str, Any]) -> bool:
    """Return True if a record is a task with its worked solution in the manner of GSM8K, which ends in "#### 42"."""
    texts = (record.get("answer"), record.get("solution"))
    return isinstance(record.get("question"), str) and any(isinstance(text, str) and "####" in text for text in texts)


def examples_of_tasks(rows: Sequence[Row], form: Form, seed: int) -> list[Example]:
    """Return the examples of tasks that belong to no family: those of the math agent.

    Raises:
        UserError: the recipe of the math agent is not installed.
    """
    math = find_family(MATH)
    if math is None:
        raise DatasetError("examples of tasks need the recipe of the math agent, which is missing", setting="dataset")
    return math.examples(rows, form, seed)


RowT = TypeVar("RowT", bound=Mapping[str, Any])

_ENDINGS: dict[Form, str] = {"sft": "sft", "rl": "gen", "preference": "prefs", "unpaired": "prefs"}


def load_examples(
    name: str | Path,
    form: Form,
    *,
    split: str = "train",
    max_samples: int | None = None,
    seed: int = 0,
) -> list[Example]:
    """Conversational examples of one form.

    - `sft`: `{"messages": […]}`, with `tools` where there are any: word problems are the conversations of the math
      agent with its calculator, `medical` those of the SQL agent;
    - `rl`: `{"prompt": […], "ground_truth", "id", "question", "answer"}`, with `tools` where there are any;
    - `preference`: `{"prompt": […], "chosen": […], "rejected": […]}`;
    - `unpaired`: `{"prompt": […], "completion": […], "label": bool}`.

    Args:
        name: `arithmetic` or `medical` (`arithmetic:1,2` for some levels), `gsm_symbolic` or `gsm8k`; one of
            `EPISODES`, which have the forms `sft` and `rl`; a .jsonl, .json, .csv, .tsv or .parquet file; a folder with
            such files named for their splits; `owner/name` (or `owner/name:configuration`) on the Hugging Face Hub; or
            `module:function`, which is called with form, split, max_samples and seed and gives the rows. With "text:"
            before it, word problems come without the calculator: the prompt asks for a step-by-step solution, and that
            is what is imitated.
        form: what the examples are for.
        split: "train", "val", "test", or for files "all".
        max_samples: how many examples to draw; None takes all (of generated data sets 1000).
        seed: of the draw, and of what is generated.

    Raises:
        DatasetError: no such data set, form or split, or a record that cannot be an example of this form.
        MissingPackageError: the extra that the data set needs is not installed.
    """
    if form not in FORMS:
        raise DatasetError(f"form must be one of {', '.join(FORMS)}, not {form!r}")
    if max_samples is not None and max_samples < 0:
        raise DatasetError(f"max_samples must be 0 or more, not {max_samples}")
    text, as_text = split_style(str(name))
    path = Path(text)
    family = find_family(text)
    if family is not None or is_plugged(text):
        size = max_samples if form != "unpaired" or max_samples is None else -(-max_samples // 2)
        rows = load_task_dataset(str(name), split, size, seed)
        made = examples_of_tasks(rows, form, seed) if family is None else family.examples(rows, form, seed)
        return made[:max_samples]
    if ":" in text and not exists(text):
        return _called(text, form, split, max_samples, seed)
    check_exists(text)
    parts = load_parts(text)
    first = next((record for records in parts.values() for _, record in records), {})
    if is_worked(first):
        tasks = select(task_rows(parts, stem(path)), split, lambda row: str(row["question"]))
        tasks = list(in_text(tasks)) if as_text else tasks
        drawn = _drawn(examples_of_tasks(tasks, form, seed), max_samples, seed)
        logger.info("%s: %s (%s, split %s)", text, counted(len(drawn), "example"), form, split)
        return drawn
    every = _examples(parts, form, stem(path))
    bad = sum(map(len, parts.values())) - sum(map(len, every.values())) if form == "sft" else 0
    if bad:
        message = f"{counted(bad, 'row')} left out: the label says that the answer is bad"
        if not any(every.values()):
            raise DatasetError(f"{text}: {message}, and no row is left (form {form})", setting="dataset")
        logger.warning("%s: %s", text, message)
    drawn = _drawn(select(every, split, prompt_key, ending=_ENDINGS[form]), max_samples, seed)
    total = sum(map(len, every.values()))
    logger.info("%s: %d of %s (%s, split %s)", text, len(drawn), counted(total, "example"), form, split)
    return drawn


def divide_examples(rows: Sequence[RowT], eval_fraction: float, seed: int = 0) -> tuple[list[RowT], list[RowT]]:
    """Return rows to train on, and rows to evaluate on: by the hash of their questions and the seed, equal questions
    together.

    Where both are possible, neither side is empty. A fraction of 0 evaluates nothing.

    Raises:
        DatasetError: `eval_fraction` is not in [0, 1).
    """
    if not 0 <= eval_fraction < 1:
        raise DatasetError(f"{eval_fraction} must be at least 0 and below 1", setting="eval_fraction")
    keys = sorted({prompt_key(row) for row in rows}, key=lambda key: digest(f"{seed}/{key}"))
    count = min(max(1, round(eval_fraction * len(keys))), len(keys) - 1) if eval_fraction and keys else 0
    held_out = set(keys[:count])
    return (
        [row for row in rows if prompt_key(row) not in held_out],
        [row for row in rows if prompt_key(row) in held_out],
    )


def _examples(parts: Mapping[str, Sequence[Located]], form: Form, name: str) -> dict[str, list[Example]]:
    return {
        part: [example for number, (where, record) in enumerate(records, 1)
               for example in _example(record, form, where, f"{name if part == 'all' else part}-{number}")]
        for part, records in parts.items()
    }  # fmt: skip


def _example(record: Any, form: Form, where: str, default_id: str) -> list[Example]:
    try:
        return examples_of(record, form, default_id)
    except ShapeError as error:
        raise DatasetError(f"{where}: {error} (form {form})", setting="dataset") from error


def _drawn(examples: list[Example], max_samples: int | None, seed: int) -> list[Example]:
    if max_samples is None or max_samples >= len(examples):
        return examples
    return random.Random(seed).sample(examples, max_samples)


def _called(name: str, form: Form, split: str, max_samples: int | None, seed: int) -> list[Example]:
    """Return the rows of a user's function."""
    try:
        return [dict(row) for row in load_object(name)(form=form, split=split, max_samples=max_samples, seed=seed)]
    except DatasetError:
        raise
    except Exception as error:  # the user's code may fail in any way
        raise DatasetError(f"{name!r} gives no rows: {type(error).__name__}: {error}", setting="dataset") from error
