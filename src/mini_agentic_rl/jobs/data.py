"""`convert-dpo` and `dataset`: raw preferences into one form, and a look at what a data set gives to training."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from ..datasets import (
    PreferenceFields,
    convert_preferences,
    load_examples,
    load_task_dataset,
    overlap_of_splits,
    splits_of,
)
from ..errors import UserError
from ..files import write_json, write_text
from ..metrics import shared_console
from .settings import ConvertSettings, DatasetSettings


def convert_job(settings: ConvertSettings) -> dict[str, Any]:
    """Convert, and return the report with the paths of both files.

    Raises:
        UserError: a path is missing, a file cannot be read or written, or no record is a preference.
    """
    if settings.input is None or settings.output is None:
        raise UserError(f"`{'input' if settings.input is None else 'output'}` is needed: give the path of a file")
    fields = PreferenceFields(settings.prompt_field, settings.chosen_field, settings.rejected_field)
    with _progress(f"converting {settings.input.name}") as progress:
        report = convert_preferences(
            settings.input, settings.output, fields=None if fields == PreferenceFields() else fields, progress=progress
        )
    result = {"input": str(settings.input), "output": str(settings.output), **report.as_json()}
    if settings.report is not None:
        settings.report.parent.mkdir(parents=True, exist_ok=True)
        write_json(settings.report, result)
    return result


def dataset_job(settings: DatasetSettings) -> dict[str, Any]:
    """Return the number of examples and the first of them.

    Raises:
        UserError: there is no such data set, or an extra that it needs is not installed.
    """
    examples = load_examples(
        settings.dataset,
        settings.form,
        split=settings.split,
        max_samples=settings.max_samples,
        seed=settings.seed,
    )
    if settings.output is not None:
        settings.output.parent.mkdir(parents=True, exist_ok=True)
        write_text(settings.output, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in examples))
    return {
        "dataset": settings.dataset,
        "form": settings.form,
        "split": settings.split,
        "examples": len(examples),
        "columns": list(dict.fromkeys(name for example in examples for name in example)),
        "faults": Counter(example["fault"] for example in examples if "fault" in example),
        "first": examples[: settings.show],
    }


def check_splits_job(settings: DatasetSettings) -> dict[str, Any]:
    """Return how much of the questions of each split was in the earlier ones: `overlaps`, see `overlap_of_splits`.

    Raises:
        UserError: there is no such data set, an extra that it needs is not installed, or it has one split alone.
    """
    splits: dict[str, list[str]] = {}
    for split in splits_of(settings.dataset):
        rows = load_task_dataset(settings.dataset, split, settings.max_samples, settings.seed)
        splits[split] = [str(row["question"]) for row in rows]
    if sum(map(bool, splits.values())) < 2:
        raise UserError(f"{settings.dataset} has too few tasks for two splits", setting="dataset")
    return {
        "dataset": settings.dataset,
        "ngram": settings.ngram,
        "splits": {name: len(questions) for name, questions in splits.items()},
        "overlaps": overlap_of_splits(splits, settings.ngram),
    }


@contextmanager
def _progress(title: str) -> Iterator[Callable[[float], None] | None]:
    """Show a bar with the remaining time on a terminal, on standard error; it is gone when it is done."""
    console = shared_console()
    if not console.is_terminal:  # in older versions of rich a disabled bar writes an empty line
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda part: bar.update(task, completed=part)
