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
from .conversation import TEXT_PROMPT, demonstration, in_text, opening, split_style, tools_for
from .corruptions import Case, corrupted
from .episodes import episode_examples, is_episodes, load_episodes
from .formats import FORMS, Example, Form, examples_of, prompt_key, unpaired_of
from .load import EVERY_NAME, MEDICAL, NAMES, is_plugged, load_task_dataset
from .messages import assistant
from .records import Located, is_data_file, is_hub_name, stem
from .rows import DatasetError, Row, digest, meant, select
from .sql import medical_examples
from .tasks import load_parts, task_rows
from .turns import ShapeError
from .worked import Worked, worked_solution


def is_worked(record: Mapping[str, Any]) -> bool:
    """Return True if a record is a task with its worked solution in the manner of GSM8K, which ends in "#### 42"."""
    texts = (record.get("answer"), record.get("solution"))
    return isinstance(record.get("question"), str) and any(isinstance(text, str) and "####" in text for text in texts)


def examples_of_tasks(rows: Sequence[Row], form: Form, seed: int) -> list[Example]:
    """Return one example a row; two of `unpaired`, a right one and a wrong one.

    Demonstrations and prompts for rewards are those of the conversation with the calculator, unless a row has the style
    "text"; a preference is between two written solutions.

    Raises:
        ValueError: a preference is asked for of a row whose answer is no number and that has no working.
    """
    if form == "rl":
        return [{**row, "prompt": opening(row), "ground_truth": str(row["answer"]), **_offered(row)} for row in rows]
    if form == "sft":
        return [{"messages": demonstration(row), **_offered(row)} for row in rows]
    solutions = [worked_solution(row) for row in rows]
    pairs = [_pair(row, solutions, at, seed) for at, row in enumerate(rows)]
    return pairs if form == "preference" else [example for pair in pairs for example in unpaired_of(pair)]


def _offered(row: Row) -> dict[str, Any]:
    """Return the column of the tools, where a row comes with any."""
    tools = tools_for(row)
    return {"tools": tools} if tools else {}


def _pair(row: Row, solutions: Sequence[Worked], at: int, seed: int) -> dict[str, Any]:
    rng = random.Random(f"preference/{seed}/{row['id']}")
    other = solutions[(at + 1) % len(solutions)]
    rejected, corruption = corrupted(rng, Case(row, solutions[at], other))
    return {
        "prompt": opening(row, TEXT_PROMPT),
        "chosen": [assistant(solutions[at].text)],
        "rejected": [assistant(rejected)],
        "fault": corruption,
    }


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
    if is_episodes(text):
        return episode_examples(text, load_episodes(text, split, max_samples, seed), form)
    known = text.partition(":")[0]
    if known == MEDICAL:
        return medical_examples(load_task_dataset(text, split, max_samples, seed), form)
    if known in NAMES or is_plugged(text):
        size = max_samples if form != "unpaired" or max_samples is None else -(-max_samples // 2)
        return examples_of_tasks(load_task_dataset(str(name), split, size, seed), form, seed)[:max_samples]
    if ":" in text and not (path.exists() or is_data_file(path) or is_hub_name(text)):
        return _called(text, form, split, max_samples, seed)
    if not (path.exists() or is_data_file(path) or is_hub_name(text)):
        raise DatasetError(
            f"{text!r} does not exist{meant(text, EVERY_NAME)}; choose {', '.join(EVERY_NAME)}, or give a file "
            "(.jsonl, .json, .csv, .parquet), a folder, owner/name on the Hub, or module:function",
            setting="dataset",
        )
    parts = load_parts(text)
    first = next((record for records in parts.values() for _, record in records), {})
    if is_worked(first):
        tasks = select(task_rows(parts, stem(path)), split, lambda row: str(row["question"]))
        tasks = in_text(tasks) if as_text else tasks
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
