"""Examples for training, by the name or path of a data set and the form of training.

No question is ever in two splits: what those who published it did not divide is divided by the hash of the question
(`rows.select`), whatever the form, the place in the file and the seed. So what was imitated of `train` does not appear
among the tasks or preferences of `test`.

Tasks with a known answer become examples of every form: demonstrations, prompts for rewards, right against wrong. The
rejected answer of a preference is made of the right solution by one corruption, whose name the row carries as `fault`.
What is drawn depends on the task and the seed alone; the task behind it lends the off-topic answer.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..metrics import counted
from ..user_code import load_object
from .families import MATH, find_family
from .formats import FORMS, Example, Form, examples_of, prompt_key
from .load import check_exists, exists, in_text, is_plugged, load_task_dataset, split_style
from .records import Located, stem
from .rows import DatasetError, Row, digest, select
from .tasks import load_parts, task_rows
from .turns import ShapeError


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


logger = logging.getLogger(__name__)

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
