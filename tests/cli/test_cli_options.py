"""Options are the fields of a settings class: names, help, defaults, choices and bounds are written once."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import typer
from pydantic import Field, model_validator
from typer.testing import CliRunner

from mini_agentic_rl.commands.options import settings_command
from mini_agentic_rl.config import Settings
from mini_agentic_rl.errors import UserError


class Example(Settings):
    """An example."""

    steps: int = Field(default=3, ge=1, json_schema_extra={"panel": "Learning"})
    """How many
    steps."""
    kind: Literal["plain", "fancy"] = "plain"
    """Which kind."""
    folder: Path | None = None
    """Where to."""
    names: list[Literal["a", "b"]] = Field(default_factory=lambda: ["a"])
    """Some names."""
    quick: bool = False
    """Be quick."""
    tools: bool = True
    """Use tools."""
    fresh: bool | None = None
    """Start afresh, or not; otherwise as the kind says."""
    json_output: bool = Field(default=False, json_schema_extra={"option": "--json"})
    """Print JSON."""

    @model_validator(mode="after")
    def _steps_of_fancy(self) -> Example:
        if self.kind == "fancy" and self.steps > 9:
            raise ValueError("--kind fancy takes at most --steps 9")
        return self


def _invoke(*arguments: str, error: BaseException | None = None):
    app = typer.Typer(pretty_exceptions_enable=False)
    seen: list[Example] = []

    @settings_command(app, "go", Example)
    def go(settings: Example) -> None:
        """Go somewhere."""
        if error is not None:
            raise error
        seen.append(settings)

    app.command()(lambda: None)  # a single command would need no name
    result = CliRunner().invoke(app, ["go", *arguments], env={"COLUMNS": "200", "TERM": "dumb"})
    return result, seen


def test_the_settings_tell_what_was_given_from_what_is_by_default():
    _, (settings,) = _invoke("--steps", "3", "--no-fresh", "--names", "a")
    assert settings == Example(fresh=False)
    assert settings.model_fields_set == {"steps", "fresh", "names"}


def test_every_field_can_be_given():
    arguments = "--steps 5 --kind fancy --folder x/y --names a --names b --quick --no-tools --json"
    _, (settings,) = _invoke(*arguments.split())
    assert settings == Example(
        steps=5, kind="fancy", folder=Path("x/y"), names=["a", "b"], quick=True, tools=False, json_output=True
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--steps 0", "error: --steps 0: input should be greater than or equal to 1\n"),
        ("--kind odd", "error: --kind odd: input should be 'plain' or 'fancy'\n"),
        ("--names c", "error: --names c: input should be 'a' or 'b'\n"),
        ("--kind fancy --steps 10", "error: --kind fancy takes at most --steps 9\n"),
    ],
)
def test_a_value_against_the_rules_is_one_line_that_names_the_option(arguments, message):
    result, seen = _invoke(*arguments.split())
    assert (result.exit_code, result.stderr, result.stdout, seen) == (2, message, "", [])


def test_a_user_error_is_one_line_and_other_errors_keep_their_traceback():
    result, _ = _invoke(error=UserError("--model x: there is\nno such model"))
    assert result.exit_code == 2
    assert result.stderr == "error: --model x: there is no such model\n"
    assert isinstance(_invoke("--debug", error=UserError("no such model"))[0].exception, UserError)
    assert isinstance(_invoke(error=ZeroDivisionError("ours"))[0].exception, ZeroDivisionError)


def test_ctrl_c_exits_with_130():
    result, _ = _invoke(error=KeyboardInterrupt())
    assert result.exit_code == 130
    assert result.stderr == "interrupted\n"


def test_a_field_that_no_option_can_hold_is_refused_at_once():
    class Mapped(Settings):
        """Holds a mapping."""

        values: dict[str, int] = {}  # noqa: RUF012  # pydantic copies defaults
        """Values."""

    class Required(Settings):
        """Needs a value."""

        value: int
        """A value."""

    for settings_class in (Mapped, Required):
        with pytest.raises(TypeError, match="setting 'value"):
            settings_command(typer.Typer(), "go", settings_class)(lambda settings: None)
    with pytest.raises(TypeError, match="no options for"):
        settings_command(typer.Typer(), "go", Example, short_help=["stepz"])(lambda settings: None)
