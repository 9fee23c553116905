"""`dataset` and `convert-dpo`: show the examples of a data set; convert raw preference data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import typer
from pydantic import Field
from rich.console import Console
from rich.table import Table

from ..config import JsonSettings, SeedSettings
from ..datasets import (
    PreferenceFields,
    convert_preferences,
    load_examples,
    load_task_dataset,
    overlap_of_splits,
    splits_of,
)
from ..errors import UserError
from ..files import make_folder_of, write_json, write_text
from ..metrics import counted, percent
from .tables import show


class ConvertSettings(JsonSettings):
    """The settings of `convert-dpo`."""

    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        "Files": ("input", "output", "report"),
        "Fields": ("prompt_field", "chosen_field", "rejected_field"),
        "Options": ("json_output",),
    }

    input: Path | None = None
    """Raw preferences: .jsonl (also .gz), .json, .csv, .tsv or .parquet. Required."""
    output: Path | None = None
    """JSONL file to write, one `{"prompt", "chosen", "rejected"}` of messages a line. Required."""
    report: Path | None = None
    """JSON file for the report of left-out records with reasons."""

    prompt_field: str | None = None
    """Field of the prompt, if its name is unusual."""
    chosen_field: str | None = None
    """Field of the better answer, if its name is unusual."""
    rejected_field: str | None = None
    """Field of the worse answer, if its name is unusual."""


class DatasetSettings(SeedSettings, JsonSettings):
    """The settings of `dataset`."""

    helps: ClassVar[Mapping[str, str]] = {"seed": "Seed of the draw and of generated data."}

    dataset: str = Field(default="arithmetic", json_schema_extra={"argument": True})
    """Data set: `arithmetic`, `medical`, `gsm_symbolic`, `gsm8k`, a family of tasks (`countdown`, `units`, `guess`,
    `retrieval`, `reasoning_gym:NAME`), a file, a folder, `owner/name` on the Hub, or `module:function`."""
    form: Literal["sft", "rl", "preference", "unpaired"] = "sft"
    """Form of training."""
    split: Literal["train", "val", "test", "transfer", "all"] = "train"
    """Split of the data; `transfer` exists for arithmetic and task families, `all` for files."""
    max_samples: int | None = Field(default=None, ge=0)
    """Number of examples to draw; by default all, or 1000 of a generated data set."""
    show: int = Field(default=3, ge=0)
    """Number of examples to show."""
    output: Path | None = None
    """JSONL file to write the examples to, as training reads them."""
    check_splits: bool = False
    """Instead compare the questions of all splits with each other: equal questions, questions that differ only in
    numbers, and the share of common n-grams."""
    ngram: int = Field(default=8, ge=1)
    """Words of an n-gram for `check_splits`."""


def dataset(settings: DatasetSettings) -> None:
    """Show the examples of a data set for a form of training, or write them to a file."""
    if settings.check_splits:
        _check_splits(settings)
        return
    if settings.output is not None:
        make_folder_of(settings.output, setting="output")
    examples = load_examples(
        settings.dataset,
        settings.form,
        split=settings.split,
        max_samples=settings.max_samples,
        seed=settings.seed,
    )
    if settings.output is not None:
        write_text(settings.output, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in examples))
    result = {
        "dataset": settings.dataset,
        "form": settings.form,
        "split": settings.split,
        "examples": len(examples),
        "columns": list(dict.fromkeys(name for example in examples for name in example)),
        "faults": Counter(example["fault"] for example in examples if "fault" in example),
        "first": examples[: settings.show],
    }
    show(settings, result, _show_examples)
    if settings.output is not None and not settings.json_output:
        typer.echo(f"wrote {settings.output}")


def _check_splits(settings: DatasetSettings) -> None:
    """Show the overlap of the questions of each split with those of the earlier ones."""
    splits: dict[str, list[str]] = {}
    for split in splits_of(settings.dataset):
        rows = load_task_dataset(settings.dataset, split, settings.max_samples, settings.seed)
        splits[split] = [str(row["question"]) for row in rows]
    if sum(map(bool, splits.values())) < 2:
        raise UserError(f"{settings.dataset} has too few tasks for two splits", setting="dataset")
    result = {
        "dataset": settings.dataset,
        "ngram": settings.ngram,
        "splits": {name: len(questions) for name, questions in splits.items()},
        "overlaps": overlap_of_splits(splits, settings.ngram),
    }
    show(settings, result, _show_overlaps)


def convert_dpo(settings: ConvertSettings) -> None:
    """Convert raw preference data to the form that dpo, orpo, kto and reward read; report left-out records."""
    if settings.input is None or settings.output is None:
        raise UserError(f"`{'input' if settings.input is None else 'output'}` is required: give the path of a file")
    if settings.report is not None:
        make_folder_of(settings.report, setting="report")
    fields = PreferenceFields(settings.prompt_field, settings.chosen_field, settings.rejected_field)
    report = convert_preferences(settings.input, settings.output, fields=fields)
    result = {"input": str(settings.input), "output": str(settings.output), **report.as_json()}
    if settings.report is not None:
        write_json(settings.report, result)
    show(settings, result, _show_conversion)


def _show_conversion(console: Console, report: Mapping[str, Any]) -> None:
    """Print the number of written records, and a table of the left-out ones."""
    shapes = ", ".join(f"{count} {shape}" for shape, count in report["shapes"].items())
    console.print(f"{report['written']} of {counted(report['read'], 'record')} written ({shapes})")
    if report["dropped"]:
        table = Table("left out", "records", "the first of them", title="Left out")
        table.columns[1].justify = "right"
        for reason, dropped in report["dropped"].items():
            first = "; ".join(
                f"line {example['line']}" + (f" ({example['detail']})" if example["detail"] else "")
                for example in dropped["first"][:2]
            )
            table.add_row(reason, f"{dropped['count']:,}", first)
        console.print(table)
    console.print(f"wrote {report['output']}")


def _show_overlaps(console: Console, result: Mapping[str, Any]) -> None:
    """Print the overlap of the questions of each split with those of the earlier ones."""
    sizes = ", ".join(f"{name} {count:,}" for name, count in result["splits"].items())
    console.print(f"{result['dataset']}: {sizes}")
    ngram = result["ngram"]
    table = Table("asked", "seen", "the same", "but for numbers", f"{ngram} words", "of their words", title="Overlap")
    for row in result["overlaps"]:
        shares = (percent(row[name] / row["questions"]) for name in ("same", "same_but_numbers", "with_ngram"))
        table.add_row(row["asked"], row["seen"], *shares, percent(row["ngrams_seen"]))
    console.print(table)
    console.print(
        f"share of the questions: equal to a seen one; equal but for numbers; with {ngram} words in a row of a "
        f"seen one; and the mean share of their {ngram}-grams that were seen"
    )


def _show_examples(console: Console, result: Mapping[str, Any]) -> None:
    """Print the number of examples and the first of them."""
    console.print(
        f"{result['dataset']}: {counted(result['examples'], 'example')} of the form {result['form']} in the "
        f"split {result['split']}, with {', '.join(result['columns'])}"
    )
    for example in result["first"]:
        console.rule(characters="-")
        for name, value in example.items():
            if isinstance(value, list) and value and isinstance(value[0], Mapping) and "role" in value[0]:
                for message in value:
                    _show_message(console, name, message)
            elif name == "tools":
                console.print(f"tools: {', '.join(map(_signature, value))}")
            else:
                console.print(f"{name}: {value}")


def _show_message(console: Console, column: str, message: Mapping[str, Any]) -> None:
    """Print a message; an answer that is not trained is marked."""
    is_masked = message["role"] == "assistant" and (column == "prompt" or message.get("train") is False)
    mark = " (not trained)" if is_masked else ""
    thought = message.get("reasoning_content")
    lines = [f"thought: {thought}"] if thought else []
    lines += [message["content"]] if message.get("content") else []
    for call in message.get("tool_calls") or ():
        lines.append(f"→ {call['function']['name']} {call['function']['arguments']}")
    text = "\n".join(lines)
    console.print(f"{column} · {message['role']}{mark}: {text}")


def _signature(tool: Mapping[str, Any]) -> str:
    """Return a tool as its name with the names of its parameters."""
    function = tool.get("function", tool)
    parameters = function.get("parameters")
    names = parameters.get("properties") if isinstance(parameters, Mapping) else None
    return f"{function.get('name')}({', '.join(names or ())})"
