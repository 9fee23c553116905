"""Every command line of README, CONTRIBUTING and docs/ is one that the program understands, values included."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from mini_agentic_rl.cli import app
from mini_agentic_rl.config import CACHE_VARIABLE, LightningEnvVar
from pages.shell import COMMANDS, Line, inline_commands, page_lines, run_words
from pages.snippets import ROOT, page_names

PAGES = (*page_names(), "README.zh-CN.md", "CONTRIBUTING.md")
VARIABLES = {variable.value for variable in LightningEnvVar} | {CACHE_VARIABLE}
OWN_SCRIPTS = ("train.py",)
"""What a page calls a script of the reader's."""


def understood(line: Line) -> None:
    """Let the command's own parser read a line.

    Raises:
        AssertionError: it does not understand it; nothing here knows the program.
    """
    unknown = set(line.variables) - VARIABLES
    assert not unknown, f"{line}: nothing reads {', '.join(unknown)}"
    if not line.words:
        return
    program, *words = line.words
    if program in COMMANDS:
        _command(line, words)
    elif program == "python":
        _python(line, words)
    elif program.startswith(("examples/", "scripts/")):
        _python(line, [program, *words])
    elif program == "torchrun":
        own = words[words.index("-m") + 1 :] if "-m" in words else []
        assert own[:1] == ["mini_agentic_rl"], f"{line}: it starts no module of ours"
        _command(line, own[1:])
    elif program == "make":
        _make(line, words)
    elif program == "pip":
        _pip(line, words)
    else:
        assert program == "curl", f"{line}: no test understands {program}; say in tests/pages/test_command_lines.py how"


def _command(line: Line, words: list[str]) -> None:
    for file in _values(words, "--config"):  # what an earlier run would have left
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text("{}")
    command = get_command(app)
    rest = list(words)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    assert not getattr(command, "commands", {}), f"{line}: there is no such command"
    has_file = any("--print-config" in parameter.opts for parameter in command.params)
    _runs(line, ["agl", *words, "--print-config" if has_file else "--help"])  # both come after everything is read


def _python(line: Line, words: list[str]) -> None:
    script, *options = words
    if script == "-m":
        module = f"src/{options[0].replace('.', '/')}"
        script = f"{module}/__main__.py" if (ROOT / module).is_dir() else f"{module}.py"
    elif script in OWN_SCRIPTS:
        return
    assert (ROOT / script).exists(), f"{line}: there is no such file"
    if script.startswith("scripts/"):
        _runs(line, ["python", script, *options, "--print-config"])
    elif options and script.startswith("examples/"):
        status, shown, told = run_words(["python", script, "--help"])
        assert status == 0, told
        missing = {word.partition("=")[0] for word in options if word.startswith("-")} - set(
            re.findall(r"-[\w-]+", shown)
        )
        assert not missing, f"{line}: {missing}"


def _make(line: Line, words: list[str]) -> None:
    """A target of the Makefile; `ARGS` are options of `train`, or names of tests."""
    targets = re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    (target,) = [word for word in words if "=" not in word]
    assert target in targets, f"{line}: the Makefile has no such target"
    for word in words:
        if word.startswith("ARGS="):
            given = shlex.split(word.removeprefix("ARGS="))
            if target == "train":
                _command(line, ["train", *given])
            else:
                for path in given:
                    assert path.startswith("-") or (ROOT / path).exists(), f"{line}: there is no {path}"


def _pip(line: Line, words: list[str]) -> None:
    """The extras are those of pyproject.toml, and the files are there."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    table = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    extras = set(re.findall(r"^([a-z0-9]+) = ", table, re.MULTILINE))
    assert extras
    for found in re.finditer(r"(?:mini-agentic-rl|\.)\[([^\]]*)\]", " ".join(words)):
        assert set(found[1].split(",")) <= extras, f"{line}: pyproject.toml has no such extra"
    for file in _values(words, "-c"):
        assert (ROOT / file).is_file(), line


def _runs(line: Line, words: list[str]) -> None:
    status, _, told = run_words(words)
    assert status == 0, f"{line}\n{told}"


def _values(words: list[str], option: str) -> list[str]:
    return [value for name, value in itertools.pairwise(words) if name == option]


@pytest.mark.parametrize("page", [page for page in PAGES if page_lines(page)])
def test_the_command_lines_of_a_page_are_understood(page, here):
    for line in page_lines(page):
        understood(line)


@pytest.mark.parametrize("page", [page for page in PAGES if inline_commands(page)])
def test_the_commands_that_a_text_names_are_understood(page, here):
    for line in inline_commands(page):
        understood(line)
