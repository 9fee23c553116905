"""The command lines of README, CONTRIBUTING and docs/: finding them, and typing them as a reader does.

`page_lines` gives the lines of the ```bash blocks of a page, and `inline_commands` the commands between backticks in
its text. `shell_line` finds one line for a test that runs it.
"""

from __future__ import annotations

import io
import re
import runpy
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest.mock import patch

import httpx
from typer.testing import CliRunner

from mini_agentic_rl.cli import app
from mini_agentic_rl.integrations.hello_agents import datasets
from pages.snippets import ROOT, fenced_blocks

COMMANDS = ("mini-agentic-rl", "agl")
_ASSIGNMENT = re.compile(r"[A-Z][A-Z_0-9]*=")
_INLINE = re.compile(
    r"(?<!`)`((?:(?:mini-agentic-rl|agl|make)\s|python (?:scripts|examples)/|examples/\w|scripts/\w)[^`]*)`(?!`)"
)


@dataclass(frozen=True)
class Line:
    """One command line of a page: the variables that it sets, and the words of the command."""

    page: str
    text: str
    variables: Mapping[str, str]
    words: Sequence[str]

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"

    def run(self, *added: object, replace: Mapping[str, str] | None = None, typed: str = "") -> str:
        """Type the line; return what it prints on standard output.

        Args:
            added: options after those of the page, which win: small sizes.
            replace: words of the line, or parts of them, to others.
            typed: standard input.

        Raises:
            AssertionError: the command fails, or the line does not hold a text that is replaced.
        """
        status, printed, errors = run_words([*self._changed(replace or {}), *map(str, added)], typed=typed)
        assert status == 0, f"{self}\nstatus {status}\n{printed}\n{errors}"
        return printed

    def serve(self, read: Callable[[], None], *, port: int, replace: Mapping[str, str] | None = None) -> str:
        """Type the line of a server, call `read` once it answers, and press Ctrl-C; return what it prints.

        Args:
            port: a free one, in place of the one in the line or of the usual one.

        Raises:
            AssertionError: the server ends before it answers.
        """
        words = self._changed(replace or {})
        place = words.index("--port") if "--port" in words else len(words)
        words[place : place + 2] = ["--port", str(port)]
        with _reading(read, port):
            status, printed, errors = run_words(words)
        assert status in (0, 130), f"{self}\nstatus {status}\n{printed}\n{errors}"
        return printed

    def _changed(self, replace: Mapping[str, str]) -> list[str]:
        words = list(self.words)
        for old, new in replace.items():
            assert any(old in word for word in words), f"{self}\na test replaces {old!r}, which is not there"
            words = [word.replace(old, new) for word in words]
        return words


def page_lines(page: str) -> list[Line]:
    """Return the command lines of the ```bash blocks of a page; a continued line, or an open quotation, is one."""
    lines = []
    for _, block in fenced_blocks(page, "bash"):
        text = ""
        for part in block.replace("\\\n", " ").splitlines():
            text = f"{text}\n{part}" if text else part
            try:
                words = shlex.split(text, comments=True)
            except ValueError:  # a quotation is open
                continue
            if words:
                lines.append(_line(page, text))
            text = ""
        assert not text, f"a quotation is not closed: {text}"
    return lines


def inline_commands(page: str) -> list[Line]:
    """Return the commands and scripts that the text of a page names between backticks, as far as they are written."""
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    commands = [" ".join(match[1].split()).replace("…", "") for match in _INLINE.finditer(text)]
    return [_line(page, command) for command in dict.fromkeys(commands)]


def shell_line(page: str, part: str) -> Line:
    """Return the only line of a page's ```bash blocks that holds `part`."""
    lines = [line for line in page_lines(page) if part in line.text]
    assert len(lines) == 1, f"{page}: {len(lines)} command lines hold {part!r}; a test is about one of them"
    return lines[0]


def run_words(words: Sequence[str], *, typed: str = "") -> tuple[int, str, str]:
    """Run a command, a script or curl in this process; return its status, standard output and standard error."""
    if words[0] in COMMANDS:
        result = CliRunner().invoke(app, words[1:], input=typed, env={"COLUMNS": "200", "TERM": "dumb"})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stdout, result.stderr
    if words[0] == "curl":
        return 0, _curl(words[1:]), ""
    assert words[0] == "python", f"{words[0]}: a test can run our commands, python and curl"
    return _run_script(words[1:], typed)


def _line(page: str, text: str) -> Line:
    words = shlex.split(text, comments=True)
    if words[:1] == ["export"]:
        del words[0]
    variables = {}
    while words and _ASSIGNMENT.match(words[0]):
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    return Line(page, text, variables, words)


def _run_script(words: Sequence[str], typed: str) -> tuple[int, str, str]:
    """Run a script of the repository, where no data set is to be had from the Hub."""
    status = 0
    with (
        patch.object(sys, "argv", list(words)),
        patch.object(sys, "stdin", io.StringIO(typed)),
        patch.object(datasets, "cached", lambda *_: False),
        patch.object(datasets, "ask_hub", lambda: False),
        redirect_stdout(io.StringIO()) as out,
        redirect_stderr(io.StringIO()) as err,
    ):
        try:
            runpy.run_path(str(ROOT / words[0]), run_name="__main__")
        except SystemExit as ended:
            status = int(ended.code or 0)
    return status, out.getvalue(), err.getvalue()


def _curl(words: Sequence[str]) -> str:
    """Return the body of the answer to a request, written as for curl with `-d` and `-H`."""
    rest, headers, data, url = list(words), {"content-type": "application/x-www-form-urlencoded"}, None, ""
    while rest:
        word = rest.pop(0)
        if word == "-H":
            name, _, value = rest.pop(0).partition(":")
            headers[name.strip().lower()] = value.strip()
        elif word == "-d":
            data = rest.pop(0)
        else:
            assert not word.startswith("-"), f"curl {word}: tests know -d and -H"
            assert not url, words
            url = word if "://" in word else f"http://{word}"
    answer = httpx.request("GET" if data is None else "POST", url, content=data, headers=headers, timeout=60)
    assert answer.is_success, f"{url}: {answer.status_code} {answer.text}"
    return answer.text


@contextmanager
def _reading(read: Callable[[], None], port: int) -> Iterator[None]:
    """Call `read` in a thread once the port answers, and press Ctrl-C in the main thread after it.

    Raises:
        AssertionError: whatever `read` raises, or the block ends before anything answers.
    """
    problems: list[BaseException] = []
    ended = threading.Event()

    def follow() -> None:
        try:
            while not _answers(port):
                assert not ended.wait(0.05), "the server ended before it answered"
            read()
        except BaseException as problem:
            problems.append(problem)
        finally:
            if not ended.is_set():
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if problems:
        raise problems[0]


def _answers(port: int) -> bool:
    try:
        httpx.get(f"http://127.0.0.1:{port}/")
    except httpx.TransportError:
        return False
    return True
