"""Examples for training, by the name or path of a data set and the form of training.

No question is ever in two splits: what those who published it did not divide is divided by the hash of the question
(`splits`), whatever the form, the place in the file and the seed. So what was imitated of `train` does not appear among
the tasks or preferences of `test`.
"""

from __future__ import annotations

import importlib
import logging
import os
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from .forms import FORMS, Example, Form, examples_of, prompt_key
from .hub import is_hub_name
from .load import MEDICAL, NAMES, load_task_dataset
from .messages import ShapeError
from .records import Located, is_data_file, stem
from .rows import DatasetError, digest, meant
from .splits import select
from .sql import medical_examples
from .synthetic import examples_of_tasks, is_worked
from .tasks import load_parts, task_rows

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

    - `sft`: `{"messages": […]}`, with `tools` where there are any, as in `medical`, whose conversations are those of
      the SQL agent;
    - `rl`: `{"prompt": […], "ground_truth", "id", "question", "answer"}`;
    - `preference`: `{"prompt": […], "chosen": […], "rejected": […]}`;
    - `unpaired`: `{"prompt": […], "completion": […], "label": bool}`.

    Args:
        name: `arithmetic` or `medical` (`arithmetic:1,2` for some levels), `gsm_symbolic` or `gsm8k`; a .jsonl, .json,
            .csv, .tsv or .parquet file; a folder with such files named for their splits; `owner/name` (or
            `owner/name:configuration`) on the Hugging Face Hub; or `module:function`, which is called with form, split,
            max_samples and seed and gives the rows.
        form: what the examples are for.
        split: "train", "val", "test", or for files "all".
        max_samples: how many examples to draw; None takes all (of generated data sets 1000).
        seed: of the draw, and of what is generated.

    Raises:
        DatasetError: no such data set, form or split, or a record that cannot be an example of this form.
        ImportError: the extra that the data set needs is not installed.
    """
    if form not in FORMS:
        raise DatasetError(f"form must be one of {', '.join(FORMS)}, not {form!r}")
    if max_samples is not None and max_samples < 0:
        raise DatasetError(f"max_samples must be 0 or more, not {max_samples}")
    text = str(name)
    path = Path(text)
    known = text.partition(":")[0]
    if known == MEDICAL:
        return medical_examples(load_task_dataset(text, split, max_samples, seed), form)
    if known in NAMES:
        size = max_samples if form != "unpaired" or max_samples is None else -(-max_samples // 2)
        return examples_of_tasks(load_task_dataset(text, split, size, seed), form, seed)[:max_samples]
    if ":" in text and not (path.exists() or is_data_file(path) or is_hub_name(text)):
        return _called(text, form, split, max_samples, seed)
    if not (path.exists() or is_data_file(path) or is_hub_name(text)):
        names = (*NAMES, MEDICAL)
        raise DatasetError(
            f"--dataset {text!r} does not exist{meant(text, names)}; choose {', '.join(names)}, or give a file "
            "(.jsonl, .json, .csv, .parquet), a folder, owner/name on the Hub, or module:function"
        )
    parts = load_parts(name)
    first = next((record for records in parts.values() for _, record in records), {})
    if is_worked(first):
        tasks = select(task_rows(parts, stem(path)), split, lambda row: str(row["question"]))
        drawn = _drawn(examples_of_tasks(tasks, form, seed), max_samples, seed)
        logger.info("%s: %d examples (%s, split %s)", text, len(drawn), form, split)
        return drawn
    every = _examples(parts, form, stem(path))
    drawn = _drawn(select(every, split, prompt_key, ending=_ENDINGS[form]), max_samples, seed)
    total = sum(map(len, every.values()))
    logger.info("%s: %d of %d examples (%s, split %s)", text, len(drawn), total, form, split)
    return drawn


def divide_examples(rows: Sequence[RowT], eval_fraction: float, seed: int = 0) -> tuple[list[RowT], list[RowT]]:
    """Rows to train on, and rows to evaluate on: by the hash of their questions and the seed, equal questions together.

    Where both are possible, neither side is empty. A fraction of 0 evaluates nothing.

    Raises:
        DatasetError: `eval_fraction` is not in [0, 1).
    """
    if not 0 <= eval_fraction < 1:
        raise DatasetError(f"--eval-fraction {eval_fraction} must be at least 0 and below 1")
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
        raise DatasetError(f"{where}: {error} (form {form})") from error


def _drawn(examples: list[Example], max_samples: int | None, seed: int) -> list[Example]:
    if max_samples is None or max_samples >= len(examples):
        return examples
    return random.Random(seed).sample(examples, max_samples)


def _called(name: str, form: Form, split: str, max_samples: int | None, seed: int) -> list[Example]:
    """What a function of the user's gives."""
    module_name, _, function_name = name.partition(":")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # the module beside which the command is run, as with `python -m`
    try:
        function = getattr(importlib.import_module(module_name), function_name)
        return [dict(row) for row in function(form=form, split=split, max_samples=max_samples, seed=seed)]
    except DatasetError:
        raise
    except Exception as error:  # the user's code may fail in any way
        raise DatasetError(f"--dataset {name!r} gives no rows: {type(error).__name__}: {error}") from error
