"""Tasks and training examples by the name or path of a data set: of a recipe, a plugin, a file, a folder, or the Hub.

No question is in two splits, whatever the form, the order and the seed (`rows.select`). So nothing imitated from
`train` is a task or a preference of `test`.

A task has a `question` and an `answer`: text, a number, true or false, or a list of these. A worked solution that ends
in "#### 42", as in GSM8K, gives the answer 42 and is kept as `solution`.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from ..errors import UserError, nearest
from ..metrics import counted
from ..plugins import load_object, load_plugin, or_plugin, plugin_has
from .families import MATH, family_type, find_family, task_names
from .formats import FORMS, Example, Form, examples_of, prompt_key, task_example
from .messages import ShapeError, refuse_untrained_row
from .preferences import with_json_read
from .records import SUFFIXES, Located, Record, fields_of, is_data_file, is_hub_name, load_folder, load_hub, located
from .rows import SPLITS, DatasetError, Row, TaskRows, choose, digest, final_answer, select

logger = logging.getLogger(__name__)

_MAX_OPTIONS = 64


def named_options(text: str, *, setting: str) -> tuple[str, dict[str, Any]]:
    """Return a name and the options behind its question mark.

    Args:
        setting: name of the field that holds the text, for errors.

    Raises:
        UserError: an option is not `key=value`.
    """
    name, _, options = text.partition("?")
    try:
        pairs = parse_qsl(options, keep_blank_values=True, strict_parsing=bool(options), max_num_fields=_MAX_OPTIONS)
    except ValueError as error:
        raise UserError(f"{text}: options are written as ?key=value&key=value ({error})", setting=setting) from error
    return name, {key: _value(value) for key, value in pairs}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def as_row(record: dict[str, Any], where: str, default_id: str) -> Row:
    """Return a record as a task; `where` begins the message of an error.

    Raises:
        DatasetError: the question or the answer is missing, empty or of a wrong type.
    """
    record = dict(with_json_read(record))
    if not isinstance(record.get("question"), str) or "answer" not in record:
        with suppress(ShapeError):  # under other names
            example = task_example(record, "")
            record = {**record, "question": example["question"], "answer": record.get("answer", example["answer"])}
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


def _complaint(record: dict[str, Any], field: str, wanted: str) -> str:
    if field not in record:
        return f"is missing; {fields_of(record)}"
    value = record[field]
    is_nan = value != value
    empty = value is None or (isinstance(value, str) and not value.strip()) or value == [] or is_nan
    return "is empty" if empty else f"must be {wanted}, not {type(value).__name__}"


def _load_parts(name: str) -> dict[str, list[Located]]:
    """Return the records of a file, of a folder's files or of a data set on the Hub, by published split."""
    path = Path(name)
    if path.is_dir():
        return load_folder(path)
    if path.is_file() or is_data_file(path):
        return {"all": located(path)}
    if is_hub_name(name):
        return load_hub(name)
    names = task_names()
    near = nearest(name, names)
    meant = "" if near is None else f" (did you mean {near!r}?)"
    raise DatasetError(
        f"{name!r} does not exist{meant}; choose {', '.join(names)}, or give a file "
        f"({', '.join(SUFFIXES)}), a folder, owner/name on the Hugging Face Hub, or for examples module:function"
        f"{or_plugin('datasets')}",
        setting="dataset",
    )


def _numbered(parts: Mapping[str, Sequence[Located]], name: str) -> Iterator[tuple[str, str, str, Record]]:
    """Yield split, place and record of each record, and before it the `id` of a record without one: its number after
    the split, or after the file that is in no splits."""
    file = Path(name).name
    suffix = next((suffix for suffix in SUFFIXES if file.lower().endswith(suffix)), "")
    for part, records in parts.items():
        prefix = file[: len(file) - len(suffix)] if part == "all" else part
        for number, (where, record) in enumerate(records, 1):
            yield part, where, f"{prefix}-{number}", record


def _tasks_of_parts(parts: Mapping[str, Sequence[Located]], name: str, split: str) -> list[Row]:
    """Return the tasks of one split."""
    rows: dict[str, list[Row]] = {part: [] for part in parts}
    for part, where, default_id, record in _numbered(parts, name):
        rows[part].append(as_row(record, where, default_id))
    return select(rows, split, lambda row: str(row["question"]))


TEXT = "text"
"""`style` of a row without tools, and the prefix of a data set's name that selects it: "text:gsm8k"."""


def split_style(name: str) -> tuple[str, bool]:
    """Return the name of a data set without the prefix "text:", and whether it had the prefix."""
    prefix, colon, rest = name.partition(":")
    return (rest, True) if prefix == TEXT and colon and rest else (name, False)


def in_text(rows: Sequence[Row]) -> TaskRows:
    """Return the rows in the style without tools."""
    return TaskRows([{**row, "style": TEXT} for row in rows])


def splits_of(name_or_path: str | Path) -> tuple[str, ...]:
    """Return the splits of a task data set, training first."""
    family = family_type(split_style(str(name_or_path))[0])
    return SPLITS if family is None else family.splits


def load_task_dataset(
    name_or_path: str | Path, split: str = "train", size: int | None = None, seed: int = 0
) -> TaskRows:
    """Return rows with `id`, `question` and `answer`.

    `name_or_path` is the name of a task family (`arithmetic:1,2` has problems of these levels only), the name of a
    plugin, a file (.jsonl, .json, .csv, .tsv or .parquet), a folder with files named for their splits, or `owner/name`
    on the Hugging Face Hub. Data without published splits is divided by its questions into train, val and test
    (8 : 1 : 1). The split "all" takes every row of data that is not generated. The prefix "text:" gives rows the
    `style` "text": the math agent then offers no calculator. Without a `size`, generated data sets have 1,000 rows and
    others all their rows.

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
        rows = _plugin_tasks(name, split, size, seed)
    else:
        rows = choose(_tasks_of_parts(_load_parts(name), name, split), size, seed)
    return in_text(rows) if as_text else rows


def is_plugged(name: str) -> bool:
    """Return True for the name of a plugin's data set, with or without text behind a colon, that is no file."""
    return not Path(name).exists() and plugin_has("datasets", name.partition(":")[0])


def _plugin_tasks(name: str, split: str, size: int | None, seed: int) -> TaskRows:
    """Return the rows of a plugin: it is called with split, size and seed, and text behind a colon as `name`."""
    plugin, _, rest = name.partition(":")
    load = load_plugin("datasets", plugin, setting="dataset")
    options = {"name": rest} if rest else {}
    try:
        rows = [] if load is None else list(load(split=split, size=size, seed=seed, **options))
        return TaskRows(
            [as_row(dict(row), f"{name}: row {at}", f"{plugin}-{split}-{at}") for at, row in enumerate(rows)]
        )
    except UserError:
        raise
    except Exception as error:  # the plugin's code may fail in any way
        raise DatasetError(f"{name!r} gives no rows: {type(error).__name__}: {error}", setting="dataset") from error


def _math_examples(rows: Sequence[Row], form: Form, seed: int) -> list[Example]:
    """Return the examples of tasks that belong to no family: they are tasks of the math agent."""
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
    """Return conversational examples of one form.

    - `sft`: `{"messages": […]}`, and optionally `tools`: of word problems the conversations of the math agent with its
      calculator, of `medical` those of the SQL agent;
    - `rl`: `{"prompt": […], "ground_truth", "id", "question", "answer"}`, and optionally `tools`;
    - `preference`: `{"prompt": […], "chosen": […], "rejected": […]}`;
    - `unpaired`: `{"prompt": […], "completion": […], "label": bool}`.

    Args:
        name: the name of a task family, such as `arithmetic` or `gsm8k` (`arithmetic:1,2` for some levels; families of
            episodes have the forms `sft` and `rl`); a .jsonl, .json, .csv, .tsv or .parquet file; a folder with such
            files named for their splits; `owner/name` (or `owner/name:configuration`) on the Hugging Face Hub; or
            `module:function`, which is called with form, split, max_samples and seed and returns the rows. With the
            prefix "text:", word problems come without the calculator: a step-by-step solution is imitated.
        form: the form of training.
        split: "train", "val", "test", or for files "all".
        max_samples: number of examples to draw; None takes all (of generated data sets 1000).
        seed: seed of the draw and of generated data.

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
        made = _math_examples(rows, form, seed) if family is None else family.examples(rows, form, seed)
        return made[:max_samples]
    if ":" in text and not (path.exists() or is_data_file(path) or is_hub_name(text)):
        return _call_user_function(text, form, split, max_samples, seed)
    parts = _load_parts(text)
    first = next((record for records in parts.values() for _, record in records), {})
    solutions = [first.get("answer"), first.get("solution")]
    is_worked = any(isinstance(text, str) and "####" in text for text in solutions)  # as in GSM8K
    if is_worked and isinstance(first.get("question"), str):
        for _, where, _, record in _numbered(parts, text) if form != "rl" else ():
            with _naming(where, form):  # their splits are those of the tasks, so none is left out
                refuse_untrained_row(record)
        tasks = _tasks_of_parts(parts, text, split)
        chosen = _math_examples(in_text(tasks) if as_text else tasks, form, seed)
        total = len(chosen)
    else:
        examples = _examples_of_parts(parts, form, text)
        chosen = select(examples, split, prompt_key, ending=_ENDINGS[form])
        total = sum(map(len, examples.values()))
    if max_samples is not None and max_samples < len(chosen):
        chosen = random.Random(seed).sample(chosen, max_samples)
    logger.info("%s: %d of %s (%s, split %s)", text, len(chosen), counted(total, "example"), form, split)
    return chosen


def divide_examples(rows: Sequence[RowT], eval_fraction: float, seed: int = 0) -> tuple[list[RowT], list[RowT]]:
    """Return rows to train on and rows to evaluate on, divided by the hash of their questions and the seed.

    Neither side is empty where there are two questions or more. A fraction of 0 holds nothing out.

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


def _examples_of_parts(parts: Mapping[str, Sequence[Located]], form: Form, name: str) -> dict[str, list[Example]]:
    """Return the examples of every record, by published split; rows that are not to be imitated are logged."""
    examples: dict[str, list[Example]] = {part: [] for part in parts}
    left_out = 0
    for part, where, default_id, record in _numbered(parts, name):
        with _naming(where, form):
            made = examples_of(record, form, default_id)
        examples[part] += made
        left_out += not made
    if left_out:
        message = f"{counted(left_out, 'row')} left out: the label calls the answer bad, or a mark says not to train it"
        if not any(examples.values()):
            raise DatasetError(f"{name}: {message}, and no row is left (form {form})", setting="dataset")
        logger.warning("%s: %s", name, message)
    return examples


@contextmanager
def _naming(where: str, form: Form) -> Iterator[None]:
    """Raise a `DatasetError` with the place of a record whose shape is wrong."""
    try:
        yield
    except ShapeError as error:
        raise DatasetError(f"{where}: {error} (form {form})", setting="dataset") from error


def _call_user_function(name: str, form: Form, split: str, max_samples: int | None, seed: int) -> list[Example]:
    try:
        return [dict(row) for row in load_object(name)(form=form, split=split, max_samples=max_samples, seed=seed)]
    except DatasetError:
        raise
    except Exception as error:  # the user's code may fail in any way
        raise DatasetError(f"{name!r} gives no rows: {type(error).__name__}: {error}", setting="dataset") from error
