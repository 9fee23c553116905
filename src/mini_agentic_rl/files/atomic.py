"""Write files and folders atomically: under a temporary name, synced to disk, then renamed.

A process that is killed at any instant leaves the old file or folder, or the new one; `remove_leftovers` removes the
temporary ones.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ..errors import UserError

_PARTIAL = ".partial-"
_REPLACED = ".replaced-"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_WORDS = ("no space left", "os error 28", "disk quota exceeded", "os error 122")
_FULL_BELOW = 1 << 20
_PATIENCE = 2.0
"""Seconds to wait until other programs have closed a file that is renamed, on Windows."""
_BROKEN = (errno.EIO, errno.EROFS, errno.ENXIO)
_BROKEN_WORDS = ("input/output error", "os error 5)")
_TORCH_WORDS = ("iostream error", "pytorchstreamwriter failed", "unexpected pos")
"""Words of errors of torch, for a full disk and for a broken one."""


class DiskFullError(OSError):
    """A write ran out of disk space or quota; the earlier file is untouched."""


def write_folder(target: Path, write: Callable[[Path], None]) -> None:
    """Write a folder atomically: `write` fills an empty temporary folder beside `target`.

    Raises:
        DiskFullError: there was no space left.
        Exception: whatever else `write` raised. In both cases the temporary folder is removed and an earlier `target`
            is untouched.
    """
    partial = target.with_name(_PARTIAL + target.name)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        write(partial)
        give_usual_modes(partial)
        _sync_tree(partial)
        _put_in_place(partial, target)
    except BaseException as error:
        failure = disk_failure(error, target.parent) if isinstance(error, Exception) else None
        shutil.rmtree(partial, ignore_errors=True)
        if failure == os.strerror(errno.ENOSPC):
            raise DiskFullError(errno.ENOSPC, failure, str(target)) from error
        if failure is not None and not isinstance(error, OSError):
            raise OSError(errno.EIO, failure, str(target)) from error
        raise


def _put_in_place(partial: Path, target: Path) -> None:
    """Replace `target` by a complete folder."""
    replaced = target.with_name(_REPLACED + target.name)
    if target.exists():
        rename_over(target, replaced)
    try:
        rename_over(partial, target)
    except OSError:
        with contextlib.suppress(OSError):  # else `remove_leftovers` does it
            rename_over(replaced, target)
        raise
    _sync(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def rename_over(source: Path, target: Path) -> None:
    """Rename a file or folder, in place of an earlier file.

    On Windows a file that another program has open cannot be renamed or replaced. Virus scanners and indexers open new
    files for an instant, and readers of a run open its files: this waits for them.

    Raises:
        OSError: it cannot be renamed.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return os.replace(source, target)
        except PermissionError:
            if os.name == "posix" or time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def remove_folder(folder: Path) -> None:
    """Remove a folder after renaming it, so that no half of it keeps its name. Errors are ignored."""
    gone = folder.with_name(_PARTIAL + folder.name)
    shutil.rmtree(gone, ignore_errors=True)
    with contextlib.suppress(OSError):
        rename_over(folder, gone)
        shutil.rmtree(gone, ignore_errors=True)


def give_usual_modes(path: Path) -> None:
    """Give files the permissions of the umask; safetensors and `tempfile` make files of mode 0600.

    Args:
        path: a file, or a folder with all of its files.
    """
    probe = path.with_name(f"{_PARTIAL}mode-{path.name}")
    try:
        with probe.open("wb") as file:
            usual = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    finally:
        probe.unlink(missing_ok=True)
    for each in [path, *path.rglob("*")]:
        mode = stat.S_IMODE(each.lstat().st_mode)
        if stat.S_ISREG(each.lstat().st_mode) and mode | usual != mode:
            each.chmod(mode | usual)


def write_text(path: Path, text: str, *, private: bool = False) -> None:
    """Write a text file in UTF-8; with `private` only this user can read it.

    Raises:
        OSError: it cannot be written; an earlier file is untouched.
    """
    write_bytes(path, text.encode(), private=private)


def write_bytes(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a file; with `private` only this user can read it.

    Raises:
        OSError: it cannot be written; an earlier file is untouched.
    """
    if path.exists() and not path.is_file():  # a device such as /dev/null, or a pipe
        path.write_bytes(content)
        return
    # Several threads or processes may write the same file: the last complete one stays.
    partial = path.with_name(f"{_PARTIAL}{os.getpid()}-{threading.get_ident()}-{path.name}")
    mode = FILE_MODE if private else 0o666
    try:
        with open(partial, "wb", opener=lambda path, flags: os.open(path, flags, mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        rename_over(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def write_json(path: Path, value: Mapping[str, Any], *, private: bool = False) -> None:
    """Write a JSON object; with `private` only this user can read it.

    Raises:
        OSError: it cannot be written; an earlier file is untouched.
        TypeError: a value is no JSON value.
    """
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n", private=private)


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one if there is no such file.

    Raises:
        ValueError: the file holds something else.
    """
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def remove_leftovers(folder: Path, name: str = "*") -> None:
    """Remove temporary files of a killed process, and restore a folder that it was replacing.

    Args:
        folder: the folder that the process wrote into.
        name: name of the file or folder that was written; `*` is all.
    """
    if not folder.is_dir():
        return
    for replaced in folder.glob(_REPLACED + name):
        original = folder / replaced.name.removeprefix(_REPLACED)
        if original.exists():
            shutil.rmtree(replaced, ignore_errors=True)
        else:  # killed between the two renames
            rename_over(replaced, original)
    for partial in folder.glob(_PARTIAL + name):
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)


def _sync_tree(folder: Path) -> None:
    for root, _, files in os.walk(folder):
        for name in files:
            with open(os.path.join(root, name), "r+b") as file:
                os.fsync(file.fileno())
        _sync(Path(root))


def _sync(folder: Path) -> None:
    if os.name != "posix":  # Windows cannot open a folder
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def disk_failure(error: BaseException, folder: Path) -> str | None:
    """Return why the disk refused a write that ended in this error; None if the error has another cause.

    Call it before anything is removed. safetensors and torch raise errors of their own, torch without a reason: a disk
    that is almost full is then taken as the reason.
    """
    if _says(error, _FULL, _FULL_WORDS):
        return os.strerror(errno.ENOSPC)
    if _says(error, _BROKEN, _BROKEN_WORDS):
        return os.strerror(errno.EIO)
    of_torch = _says(error, (), _TORCH_WORDS)
    # Errors of an agent are none of writing.
    may_be_of_writing = isinstance(error, OSError) or type(error).__name__ == "SafetensorError"
    if not (of_torch or may_be_of_writing or "write" in str(error).lower()):
        return None
    try:
        if shutil.disk_usage(folder).free < _FULL_BELOW:
            return os.strerror(errno.ENOSPC)
    except OSError:  # the folder does not exist
        return None
    return os.strerror(errno.EIO) if of_torch else None


def _says(error: BaseException, numbers: tuple[int, ...], words: tuple[str, ...]) -> bool:
    """Return whether an error or one of its causes has one of these numbers or words."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in numbers:
            return True
        if any(phrase in str(cause).lower() for phrase in words):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700


def make_private_folder(path: str | Path) -> None:
    """Make a folder, with missing parents, that only this user can read; an existing folder is left as it is.

    Raises:
        OSError: it cannot be made.
    """
    folder = Path(path)
    if folder.is_dir():
        return
    if folder.exists():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    make_private_folder(folder.parent)
    folder.mkdir(mode=FOLDER_MODE, exist_ok=True)


def make_private_file(path: str | Path) -> None:
    """Make an empty file that only this user can read; remove others' permissions from an existing file of this user.

    Raises:
        OSError: it cannot be made.
    """
    handle = os.open(path, os.O_CREAT | os.O_RDWR | getattr(os, "O_CLOEXEC", 0), FILE_MODE)
    try:
        # Windows has other permissions, and no fchmod before Python 3.13
        if os.name == "posix" and os.fstat(handle).st_uid == os.geteuid():
            os.fchmod(handle, FILE_MODE)
    finally:
        os.close(handle)


_MAX_REASON: Final = 200
"""Maximum length of a library's reason in a message."""


def make_folder_of(file: Path, *, setting: str) -> None:
    """Make the folder of a file that a command writes at its end.

    Raises:
        UserError: it cannot be made, or the path of the file is that of a folder.
    """
    if file.is_dir():
        raise UserError(f"{file} is a folder: give the path of a file", setting=setting)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}", setting=setting) from error


class DamagedFileError(UserError):
    """A file or folder is damaged, incomplete, or of another kind."""


@contextmanager
def reading(path: Path | str, *, setting: str | None = None, advice: str = "") -> Iterator[None]:
    """Turn every exception of a block that reads a file into an error that names the file.

    Args:
        path: the file or folder.
        setting: the setting that chose it.
        advice: what to do; the end of the message.

    Raises:
        UserError: as it was raised inside.
        DamagedFileError: any other exception.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # parsers, archives, pickles and tensors raise many kinds
        raise DamagedFileError(damage(path, error, advice), setting=setting) from error


def damage(path: Path | str, error: BaseException, advice: str = "") -> str:
    """Return the message about a damaged file."""
    lines = str(error).strip().splitlines() or [""]
    reason = f"{type(error).__name__}: {lines[0].strip()}"[:_MAX_REASON].rstrip(": ")
    return f"{path} is damaged or incomplete ({reason})" + (f"; {advice}" if advice else "")
