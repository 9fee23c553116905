"""Where a result goes: a folder that is whole or not there, and that replaces nothing unasked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...atomic_files import DiskFullError, remove_leftovers, write_folder
from ...errors import UserError
from ...policy import ADAPTER_CONFIG

_OF_A_MODEL = ("config.json", ADAPTER_CONFIG)


def target_folder(chosen: Path | None, beside: Path, ending: str, *, overwrite: bool) -> Path:
    """The folder for a result: the chosen one, or one beside what it is made from.

    Raises:
        UserError: there is something in it already which may not be replaced.
    """
    place = beside.expanduser().absolute()
    target = (chosen or place.with_name(place.name + ending)).expanduser().absolute()
    remove_leftovers(target.parent)
    if target.exists() and not target.is_dir():
        raise UserError(f"--output-dir {target} is a file: choose a folder")
    if not target.exists() or not any(target.iterdir()):
        return target
    if not overwrite:
        raise UserError(f"--output-dir {target} is not empty: choose another folder, or give --overwrite to replace it")
    names = {path.name for path in target.iterdir()}
    if not names.intersection(_OF_A_MODEL) and not any(name.endswith(".gguf") for name in names):
        raise UserError(f"--output-dir {target} holds no model that --overwrite could replace: choose another folder")
    return target


def publish(target: Path, write: Callable[[Path], None]) -> None:
    """Fill the folder by `write`, which is given an empty one beside it; it appears when it is whole.

    Raises:
        UserError: it cannot be written, or the disk is full.
        Exception: whatever else `write` raised; what was there before is untouched.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_folder(target, write)
    except DiskFullError as error:
        raise UserError(f"no space left for --output-dir {target}: free some, or choose another folder") from error
    except PermissionError as error:
        raise UserError(f"--output-dir {target} cannot be written: {error.strerror}") from error


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
