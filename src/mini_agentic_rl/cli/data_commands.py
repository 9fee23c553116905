"""`convert-dpo` and `dataset`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..jobs import ConvertSettings, DatasetSettings
from ..metrics import counted, percent
from .options import DATA, settings_command
from .tables import show


def add_data_commands(app: typer.Typer) -> None:
    """Add the commands to `app`."""

    @settings_command(app, "dataset", DatasetSettings, panel=DATA)
    def dataset(settings: DatasetSettings) -> None:
        """Look at what a data set gives to a form of training, and write it to a file if asked to."""
        from ..jobs import check_splits_job, dataset_job

        if settings.check_splits:
            overlap = check_splits_job(settings)
            show(settings, overlap, lambda console: show_overlaps(console, overlap))
            return
        found = dataset_job(settings)
        show(settings, found, lambda console: show_examples(console, found))
        if settings.output is not None and not settings.json_output:
            typer.echo(f"wrote {settings.output}")

    @settings_command(app, "convert-dpo", ConvertSettings, panel=DATA)
    def convert_dpo(settings: ConvertSettings) -> None:
        """Bring raw preference data into the form that dpo, orpo, kto and reward read; report what was left out."""
        from ..jobs import convert_job

        report = convert_job(settings)
        show(settings, report, lambda console: show_conversion(console, report))


def show_conversion(console: Console, report: Mapping[str, Any]) -> None:
    """Print what was written, and a table of what was left out."""
    shapes = ", ".join(f"{count} {shape}" for shape, count in report["shapes"].items())
    console.print(f"{report['written']} of {counted(report['read'], 'record')} written ({shapes})", highlight=False)
    if report["dropped"]:
        table = Table("left out", "records", "the first of them", title="Left out")
        table.columns[1].justify = "right"
        for reason, found in report["dropped"].items():
            first = "; ".join(
                f"line {example['line']}" + (f" ({example['detail']})" if example["detail"] else "")
                for example in found["first"][:2]
            )
            table.add_row(Text(reason), f"{found['count']:,}", Text(first))
        console.print(table)
    console.print(f"wrote {report['output']}", highlight=False, soft_wrap=True, markup=False)


def show_overlaps(console: Console, found: Mapping[str, Any]) -> None:
    """Print how much of the questions of each split was in the earlier ones."""
    sizes = ", ".join(f"{name} {count:,}" for name, count in found["splits"].items())
    console.print(f"{found['dataset']}: {sizes}", highlight=False, markup=False)
    ngram = found["ngram"]
    table = Table("asked", "seen", "the same", "but for numbers", f"{ngram} words", "of their words", title="Overlap")
    for row in found["overlaps"]:
        shares = (percent(row[name] / row["questions"]) for name in ("same", "same_but_numbers", "with_ngram"))
        table.add_row(row["asked"], row["seen"], *shares, percent(row["ngrams_seen"]))
    console.print(table)
    console.print(
        f"of the questions asked: seen as they are; seen with other numbers; with {ngram} words in a row that were "
        f"seen; and the mean share of their runs of {ngram} words that were",
        highlight=False,
        soft_wrap=True,
    )


def show_examples(console: Console, found: Mapping[str, Any]) -> None:
    """Print the number of examples and the first of them."""
    console.print(
        f"{found['dataset']}: {counted(found['examples'], 'example')} of the form {found['form']} in the "
        f"split {found['split']}, with {', '.join(found['columns'])}",
        highlight=False,
        markup=False,
    )
    for example in found["first"]:
        console.rule()
        for name, value in example.items():
            if isinstance(value, list) and value and isinstance(value[0], Mapping) and "role" in value[0]:
                for message in value:
                    _show_message(console, name, message)
            elif name == "tools":
                console.print(f"tools: {', '.join(map(_offered, value))}", highlight=False, markup=False)
            else:
                console.print(f"{name}: {value}", highlight=False, markup=False)


def _show_message(console: Console, column: str, message: Mapping[str, Any]) -> None:
    """Print a message. Answers are trained; those in a prompt, and those with `train` False, are marked."""
    is_masked = message["role"] == "assistant" and (column == "prompt" or message.get("train") is False)
    mark = " (not trained)" if is_masked else ""
    thought = message.get("reasoning_content")
    lines = [f"thought: {thought}"] if thought else []
    lines += [message["content"]] if message.get("content") else []
    lines += [_called(call) for call in message.get("tool_calls") or ()]
    text = "\n".join(lines)
    console.print(f"{column} · {message['role']}{mark}: {text}", highlight=False, markup=False)


def _offered(tool: Mapping[str, Any]) -> str:
    """Return a tool as its name with the names of its parameters."""
    function = tool.get("function", tool)
    parameters = function.get("parameters")
    names = parameters.get("properties") if isinstance(parameters, Mapping) else None
    return f"{function.get('name')}({', '.join(names or ())})"


def _called(call: Mapping[str, Any]) -> str:
    """Return a tool call as a line."""
    return f"→ {call['function']['name']} {call['function']['arguments']}"
