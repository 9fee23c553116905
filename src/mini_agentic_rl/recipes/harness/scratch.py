"""The folder of one rollout: a copy of the task's files, a home and a place for temporary files.

workspace/   where the command runs: the task's files, without the history of any version control
home/ tmp/   its HOME and TMPDIR
task.json    the task, as far as the agent may know it
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from .sandbox import HarnessError

HISTORY: Final = (".git", ".hg", ".svn", ".jj", ".bzr")
"""Folders of version control: an agent could read from them how the task was solved."""

_FOLDER: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


class Scratch:
    """A scratch folder, and its parts."""

    def __init__(self, parent: Path | None, name: str) -> None:
        """Make the folder, in `parent` where it is to stay; `name` is part of its name."""
        self._kept = parent is not None
        self._beside: list[Path] = []
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
        # /tmp/x may be a link, and a sandbox compares real paths
        self.root = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent)).resolve()
        self.workspace = self.root / "workspace"
        self.home = self.root / "home"
        self.temporary = self.root / "tmp"
        self.task_file = self.root / "task.json"
        for folder in (self.workspace, self.home, self.temporary):
            folder.mkdir()

    def fill(self, source: Path | None, task: Mapping[str, Any]) -> None:
        """Copy the task's files in, and write the task.

        Raises:
            HarnessError: the files cannot be read.
        """
        copy_task(source, self.workspace)
        write_task(self.task_file, task)

    def beside(self, name: str) -> Path:
        """Return a new empty folder that lies beside this one, where the agent could not prepare anything."""
        folder = Path(tempfile.mkdtemp(prefix=f"{self.root.name}-{name}-", dir=self.root.parent)).resolve()
        self._beside.append(folder)
        return folder

    def remove(self) -> None:
        """Remove the folder, and those beside it, unless they are to stay."""
        for folder in () if self._kept else (self.root, *self._beside):
            remove_tree(folder)


def copy_task(source: Path | None, folder: Path) -> None:
    """Copy the files of a task into a folder, without their history; of a task without files nothing.

    Raises:
        HarnessError: the files cannot be read.
    """
    if source is None:
        return
    try:
        shutil.copytree(source, folder, symlinks=True, ignore=shutil.ignore_patterns(*HISTORY), dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        raise HarnessError(f"{source} cannot be copied: {error}") from error


def write_task(path: Path, task: Mapping[str, Any]) -> None:
    """Write a task as JSON."""
    path.write_text(json.dumps(task, ensure_ascii=False, indent=1, default=str) + "\n", encoding="utf-8")


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it, however deep: each folder within is first moved to its top.

    Raises:
        OSError: something cannot be removed.
    """
    if os.name != "posix":
        shutil.rmtree(folder)
        return
    top = os.open(folder, _FOLDER)
    try:
        while names := os.listdir(top):
            for name in names:
                _empty(name, top)
    finally:
        os.close(top)
    folder.rmdir()


def _empty(name: str, top: int) -> None:
    """Remove a file, or a folder whose own folders are moved to `top` under new names."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=top)
        return
    os.chmod(name, stat.S_IRWXU, dir_fd=top)  # its owner may have closed it
    folder = os.open(name, _FOLDER, dir_fd=top)
    try:
        for inner in os.listdir(folder):
            if stat.S_ISDIR(os.stat(inner, dir_fd=folder, follow_symlinks=False).st_mode):
                os.chmod(inner, stat.S_IRWXU, dir_fd=folder)
                os.rename(inner, secrets.token_hex(16), src_dir_fd=folder, dst_dir_fd=top)
            else:
                os.unlink(inner, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=top)
