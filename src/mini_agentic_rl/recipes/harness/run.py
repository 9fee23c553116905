"""One rollout of a command: the agent in its sandbox, then the comparison of files, the tests, and the result.

The order protects the tests. They are copied after every process of the agent has ended, into a folder that the agent
never saw, and run there in a new copy of the task's files with the agent's results.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from ...config import HarnessSettings
from ...environments import Endpoint
from ...errors import UserError
from ...redaction import remember_secrets, without_secrets
from .containers import DockerSandbox, KubernetesSandbox
from .process import BubblewrapSandbox, ProcessSandbox
from .results import added_modules, changed_files, fill_test_folder, remove_links_out
from .sandbox import (
    PROGRAMS,
    Confined,
    Ended,
    HarnessError,
    Sandbox,
    SandboxLimits,
    Scratch,
    readable_paths,
    write_task,
)
from .tasks import FOLDER, TaskFile, read_task_file, workspace_of

_KEPT: Final = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR")
_LONGEST: Final = 100_000
"""Length of a variable that every system accepts."""


def given_variables(settings: Sequence[str]) -> dict[str, str]:
    """Return the variables of the user's settings. Keys among them are redacted from now on.

    Raises:
        UserError: a variable has no name, or has no value and is not set in this process.
    """
    variables = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not name or (not equals and name not in os.environ):
            why = "a variable has no name" if not name else f"{name!r} is not set here: write NAME=VALUE"
            raise UserError(why, setting="agent_env")
        variables[name] = value if equals else os.environ[name]
    remember_secrets({"env": variables})
    return variables


def base_variables(home: str, temporary: str) -> dict[str, str]:
    """Return the variables of every command."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {
        **kept,
        "HOME": home,
        "TMPDIR": temporary,
        "XDG_CACHE_HOME": f"{home}/.cache",
        "XDG_CONFIG_HOME": f"{home}/.config",
        "PYTHONDONTWRITEBYTECODE": "1",
        "NO_PROXY": "*",
        "no_proxy": "*",
    }


def model_variables(base_url: str, model: str, key: str, sampling: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of the model that OpenAI's and Anthropic's programs read."""
    return {
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_BASE": base_url,
        "OPENAI_API_KEY": key,
        "OPENAI_MODEL": model,
        "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": key,
        "ANTHROPIC_MODEL": model,
        "ANTHROPIC_SMALL_FAST_MODEL": model,
        **{f"MODEL_{name.upper()}": str(value) for name, value in sampling.items() if isinstance(value, int | float)},
    }


_PLACEHOLDER: Final = re.compile(r"\{(prompt|task_file|model|base_url)\}")


def split_words(command: str, setting: str) -> list[str]:
    """Split a command into words by the quoting rules of a shell, without any other shell syntax.

    A word that is the relative path of a file becomes absolute, because the command runs elsewhere.

    Raises:
        UserError: a quotation is not closed, or there are no words.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UserError(f"{command!r} cannot be read: {str(error).lower()}", setting=setting) from None
    if not words:
        raise UserError("the command is empty", setting=setting)
    return [words[0] if "/" not in words[0] else _absolute(words[0]), *map(_absolute, words[1:])]


def _absolute(word: str) -> str:
    return str(Path(word).absolute()) if not os.path.isabs(word) and os.path.isfile(word) else word


def make_sandbox(settings: HarnessSettings) -> Sandbox:
    """Return the sandbox of the settings.

    Raises:
        UserError: its program is not installed here.
    """
    network = settings.sandbox_network
    match settings.sandbox:
        case "process":
            return ProcessSandbox(network)
        case "bubblewrap":
            return BubblewrapSandbox(network)
        case "docker":
            return DockerSandbox(network, settings.sandbox_cpus)
        case "kubernetes":
            return KubernetesSandbox(network, settings.sandbox_cpus, settings.sandbox_namespace)


_REWARD: Final = "reward.txt"
_PYTHON: Final = "python"
_PORTS: Final = {"http": 80, "https": 443}
_LONGEST_WORD: Final = 130_000
"""Bytes that Linux accepts in one word of a command line."""
_LONGEST_NUMBER: Final = 100
_NOT_FOUND: Final = (126, 127)


@dataclass(frozen=True)
class HarnessResult:
    """The result of a rollout's command, the argument of a reward function."""

    agent: Ended
    """Exit code, output, seconds and so on of the agent."""
    workspace: Path
    """Copy of the task's files with the agent's results, in which the tests ran; removed after the rollout."""
    changed: list[str]
    """Files that the agent changed, added or removed."""
    tampered: list[str]
    """Protected files among them."""
    tests: Ended | None = None
    """Result of the test command; None without one."""
    written: float | None = None
    """Number that the test command wrote to $REWARD_FILE."""


class HarnessRun:
    """The run of one task."""

    def __init__(
        self, settings: HarnessSettings, task: Mapping[str, Any], endpoint: Endpoint, hidden: Sequence[Path] = ()
    ) -> None:
        """`task` is a row of a data set, with a `folder` if it has files; no command may read `hidden` paths."""
        self._settings = settings
        self._task = task
        self._endpoint = endpoint
        self._hidden = hidden
        self._folder = Path(task[FOLDER]) if task.get(FOLDER) else None
        if self._folder is not None and not self._folder.is_dir():
            raise HarnessError(f"{self._folder} is not on this computer: a task's folder has to be where runners are")
        self._file = TaskFile() if self._folder is None else read_task_file(self._folder)
        self._source = None if self._folder is None else workspace_of(self._folder)
        self._sandbox = make_sandbox(settings)

    async def agent(self, scratch: Scratch) -> Ended:
        """Run the agent in a new scratch folder.

        Raises:
            HarnessError: it cannot be run.
        """
        prompt = str(self._task.get("question", ""))
        shown = {name: self._task[name] for name in self._settings.agent_fields if name in self._task}
        url = self._sandbox.base_url(self._endpoint.base_url)
        visible = {"id": self._task.get("id"), "prompt": prompt, **shown}
        await asyncio.to_thread(scratch.fill, self._source, visible)
        values = {"prompt": prompt, "task_file": str(scratch.task_file), "model": self._endpoint.model, "base_url": url}
        words = split_words(self._settings.agent_command, "agent_command")
        words = [_PLACEHOLDER.sub(lambda match: values[match[1]], word) for word in words]
        if any(len(word.encode()) > _LONGEST_WORD for word in words):
            raise HarnessError("the task is too long for a word of a command: let it read {task_file}")
        env = {
            **base_variables(str(scratch.home), str(scratch.temporary)),
            **model_variables(url, self._endpoint.model, self._endpoint.api_key or "none", self._endpoint.sampling),
            "TASK_FILE": str(scratch.task_file),
            **({"TASK_PROMPT": prompt} if len(prompt) <= _LONGEST and "\0" not in prompt else {}),
            **given_variables(self._settings.agent_env),
        }
        where = urlsplit(self._endpoint.base_url)
        return await self._run(
            words,
            env,
            workspace=scratch.workspace,
            writable=[scratch.home, scratch.temporary],
            given=[scratch.task_file],
            seconds=self._file.agent.timeout_sec or self._settings.sandbox_seconds,
            gateway=(where.hostname or "127.0.0.1", where.port or _PORTS.get(where.scheme, 80)),
        )

    async def finish(self, scratch: Scratch, agent: Ended) -> HarnessResult:
        """Compare the files, copy the results over those of the task, and run the tests, if there are any.

        Raises:
            HarnessError: the tests cannot be run.
        """
        folder = scratch.beside("tests")
        workspace = folder / "workspace"
        changed, tampered = await asyncio.to_thread(self._compare, scratch.workspace, workspace)
        result = HarnessResult(agent, workspace, changed, tampered)
        words = await asyncio.to_thread(self._test_words, folder)
        if words is None or (tampered and self._settings.tampering == "zero"):
            return result
        tests = await self._tests(folder, workspace, words)
        await asyncio.to_thread(remove_links_out, workspace, self._source)  # the agent's code may have made some
        if tests.exit_code in _NOT_FOUND:
            raise HarnessError(f"the test command cannot be run: {without_secrets(tests.stderr).strip()[-300:]}")
        return replace(result, tests=tests, written=_number(folder / "out" / _REWARD))

    def _compare(self, left: Path, workspace: Path) -> tuple[list[str], list[str]]:
        """Fill the test folder with the agent's results; return the changed files and the protected ones among them."""
        workspace.mkdir()
        changed = changed_files(left, self._source)
        tampered = fill_test_folder(workspace, left, self._source, changed, self._file.verifier)
        modules = added_modules(workspace, self._source, changed)
        python = workspace.parent / _PYTHON
        python.mkdir()
        text = (PROGRAMS / "imports.py").read_text(encoding="utf-8")
        (python / "sitecustomize.py").write_text(
            f"{text}\n\nfind_last({str(workspace)!r}, {modules!r})\n", encoding="utf-8"
        )
        return changed, tampered

    async def _tests(self, folder: Path, workspace: Path, words: list[str]) -> Ended:
        out, home, temporary = (folder / name for name in ("out", "home", "tmp"))
        for created in (out, home, temporary):
            created.mkdir()
        task_file = folder / "task.json"
        write_task(task_file, {**self._task, "prompt": self._task.get("question", "")})
        env = {
            **base_variables(str(home), str(temporary)),
            "PYTHONPATH": str(folder / _PYTHON),
            "PYTEST_ADDOPTS": "-p no:cacheprovider",
            "TESTS": str(folder / "tests"),
            "TASK_FILE": str(task_file),
            "REWARD_FILE": str(out / _REWARD),
        }
        return await self._run(
            words,
            env,
            workspace=workspace,
            writable=[out, home, temporary],
            given=[task_file, folder / "tests", folder / _PYTHON],
            seconds=self._file.verifier.timeout_sec or self._settings.test_seconds,
            gateway=None,
        )

    async def _run(self, words: list[str], env: Mapping[str, str], *, seconds: float, **folders: Any) -> Ended:
        """Run a command in the sandbox; `folders` are further fields of `Confined`."""
        hidden = list(self._hidden)
        if self._folder is not None:
            parents = self._folder.parents  # the task's id is its path below the folder of all tasks
            hidden.append(parents[min(str(self._task.get("id", "")).count("/"), len(parents) - 1)])
        confined = Confined(
            words=words,
            env=env,
            readable=readable_paths([words], self._settings.agent_paths, hidden),
            limits=SandboxLimits.of(self._settings, seconds),
            image=self._file.environment.docker_image or self._settings.sandbox_image,
            **folders,
        )
        return await self._sandbox.run(confined)

    def _test_words(self, folder: Path) -> list[str] | None:
        """Copy the hidden tests into a folder; return the words of the test command, or None without one."""
        tests = folder / "tests"
        hidden = None if self._folder is None else self._folder / "tests"
        if hidden is not None and hidden.is_dir():
            shutil.copytree(hidden, tests, symlinks=True)
        else:
            tests.mkdir()
        script = tests / "test.sh"
        if self._settings.test_command:
            return split_words(self._settings.test_command, "test_command")
        if self._file.verifier.command:
            return ["sh", "-c", self._file.verifier.command]
        return ["sh", str(script)] if script.is_file() else None


def _number(path: Path) -> float | None:
    """Return the number in a file; None if there is no such file.

    Raises:
        HarnessError: the file has no number.
    """
    try:  # the agent's code may have created a pipe, which must not block
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        text = os.read(opened, _LONGEST_NUMBER).decode("utf-8", "replace").strip()
    except OSError:
        text = ""
    finally:
        os.close(opened)
    try:
        return float(text)
    except ValueError:
        raise HarnessError(f"the test command wrote {text!r} to $REWARD_FILE, which is no number") from None
