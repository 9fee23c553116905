"""Tasks as folders: an instruction, files to work on, and hidden tests.

    tasks/
      fix-median/
        instruction.md      the prompt
        task.toml           optional: limits, tests, protected files
        workspace/          copied to the agent's folder, without .git
        tests/              copied in once the agent has ended; `test.sh` is run, or the command of task.toml
        solution/           never copied

The folders are side by side and divided 8 : 1 : 1, or are in `train/`, `val/` and `test/`. Names and tables are those
of Harbor (Terminal-Bench 2), whose `environment/` is the workspace if there is no `workspace/`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...datasets import DatasetError, Row, TaskRows, choose, select

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

INSTRUCTION: Final = "instruction.md"
FOLDER: Final = "folder"
"""Column of a task: its folder."""
_SPLITS: Final = ("train", "val", "validation", "test")


class _Table(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class AgentTable(_Table):
    """`[agent]` of a task file."""

    timeout_sec: float | None = Field(default=None, gt=0)


class VerifierTable(_Table):
    """`[verifier]` of a task file."""

    timeout_sec: float | None = Field(default=None, gt=0)
    command: str = ""
    """Test command; by default `sh tests/test.sh`, where there is one."""
    protected: Sequence[str] = ()
    """Patterns of further files that the agent may not change."""
    results: Sequence[str] = ()
    """Patterns of the files of the agent that tests get; by default all that are not protected."""


class EnvironmentTable(_Table):
    """`[environment]` of a task file."""

    docker_image: str = ""


class TaskFile(_Table):
    """The file `task.toml`."""

    agent: AgentTable = AgentTable()
    verifier: VerifierTable = VerifierTable()
    environment: EnvironmentTable = EnvironmentTable()
    metadata: dict[str, Any] = {}


def is_task_folder(path: Path) -> bool:
    """Return True for a folder of such tasks."""
    return path.is_dir() and next(_folders(path), None) is not None


def load_task_folder(path: Path, split: str, size: int | None, seed: int) -> TaskRows:
    """Return the tasks of a split, as rows with `id`, `question`, `answer` (which is empty) and `folder`.

    Raises:
        DatasetError: a task has no instruction or no readable file, or there is no such split.
    """
    parts: dict[str, list[Row]] = {}
    for folder in _folders(path):
        part = folder.parent.name if folder.parent != path else "all"
        parts.setdefault(part, []).append(_row(folder, path))
    if split in parts:
        return choose(parts[split], size, seed)
    return choose(select(parts, split, lambda row: str(row["id"])), size, seed)


def read_task_file(folder: Path) -> TaskFile:
    """Return the content of a task's file; the defaults if there is none.

    Raises:
        DatasetError: the file is invalid.
    """
    path = folder / "task.toml"
    try:
        return TaskFile.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return TaskFile()
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise DatasetError(f"{path}: {where}: {problem['msg']}", setting="dataset") from None
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path}: {error}", setting="dataset") from None


def workspace_of(folder: Path) -> Path | None:
    """Return the folder that is copied for the agent; None where the task has no files."""
    return next((folder / name for name in ("workspace", "environment") if (folder / name).is_dir()), None)


def _folders(path: Path) -> Any:
    """Yield the folders of tasks, in order."""
    for child in sorted(path.iterdir()):
        if (child / INSTRUCTION).is_file():
            yield child
        elif child.name in _SPLITS and child.is_dir():
            yield from (task for task in sorted(child.iterdir()) if (task / INSTRUCTION).is_file())


def _row(folder: Path, root: Path) -> Row:
    try:
        text = (folder / INSTRUCTION).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise DatasetError(f"{folder / INSTRUCTION}: {error}", setting="dataset") from None
    if not text:
        raise DatasetError(f"{folder / INSTRUCTION} is empty", setting="dataset")
    known = {key: value for key, value in read_task_file(folder).metadata.items() if key == "difficulty"}
    return {
        **known,
        "id": folder.relative_to(root).as_posix(),
        "question": text,
        "answer": "",
        FOLDER: str(folder.absolute()),
    }
