"""Every command line of README, CONTRIBUTING and docs/ is understood, values included; every block has a test."""

from __future__ import annotations

import importlib
import itertools
import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from mini_agentic_rl.cli import app
from mini_agentic_rl.config import CACHE_VARIABLE, LightningEnvVar
from pages.shell import COMMANDS, Line, inline_commands, page_lines, run_words
from pages.snippets import CLAIMED, ROOT, fenced_blocks, page_names

PAGES = (*page_names(), "README.zh-CN.md", "CONTRIBUTING.md")
VARIABLES = {variable.value for variable in LightningEnvVar} | {CACHE_VARIABLE}
SCRIPTS_OF_READERS = ("train.py",)


def understood(line: Line) -> None:
    """Let the command's own parser read a line.

    Raises:
        AssertionError: it does not understand it, or nothing here knows the program.
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
        module = words[words.index("-m") + 1 :] if "-m" in words else []
        assert module[:1] == ["mini_agentic_rl"], f"{line}: it starts no module of ours"
        _command(line, module[1:])
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
    elif script in SCRIPTS_OF_READERS:
        return
    assert (ROOT / script).exists(), f"{line}: there is no such file"
    if script.startswith("scripts/"):
        _runs(line, ["python", script, *options, "--print-config"])
    elif options and script.startswith("examples/"):
        known = re.findall(r"-[\w-]+", _runs(line, ["python", script, "--help"]))
        missing = {word.partition("=")[0] for word in options if word.startswith("-")} - set(known)
        assert not missing, f"{line}: {missing}"


def _make(line: Line, words: list[str]) -> None:
    """A target of the Makefile; `ARGS` are options of `train`, or names of tests."""
    targets = re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    (target,) = [word for word in words if "=" not in word]
    assert target in targets, f"{line}: the Makefile has no such target"
    given = [part for word in words if word.startswith("ARGS=") for part in shlex.split(word.removeprefix("ARGS="))]
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
    for match in re.finditer(r"(?:mini-agentic-rl|\.)\[([^\]]*)\]", " ".join(words)):
        assert set(match[1].split(",")) <= extras, f"{line}: pyproject.toml has no such extra"
    for file in _values(words, "-c"):
        assert (ROOT / file).is_file(), line


def _runs(line: Line, words: list[str]) -> str:
    status, printed, errors = run_words(words)
    assert status == 0, f"{line}\n{errors}"
    return printed


def _values(words: list[str], option: str) -> list[str]:
    return [value for name, value in itertools.pairwise(words) if name == option]


@pytest.mark.parametrize("page", PAGES)
def test_the_command_lines_and_inline_commands_of_a_page_are_understood(page, here):
    for line in (*page_lines(page), *inline_commands(page)):
        understood(line)


def test_every_python_block_has_a_claim():
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        importlib.import_module(f"pages.{path.stem}")
    claimed = {(block.page, block.text) for block in CLAIMED}
    blocks = [(page, line, text) for page in page_names() for line, text in fenced_blocks(page, "python")]
    missing = [f"{page}:{line}" for page, line, text in blocks if (page, text) not in claimed]
    assert missing == [], (
        f"{', '.join(missing)}: no test says what this block does. Write one in tests/pages/ that names the block with "
        "python_block(page, part), runs it with run(), and asserts what the page says of it; "
        "CONTRIBUTING.md, Tests, shows how."
    )
