"""The folder of a result: whole or not there, and never a replacement that nobody asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...atomic_files import DiskFullError, remove_leftovers, write_folder
from ...errors import UserError
from ...policy import ADAPTER_CONFIG

_OF_A_MODEL = ("config.json", ADAPTER_CONFIG)


def target_folder(chosen: Path | None, beside: Path, ending: str, *, overwrite: bool) -> Path:
    """Return the folder for a result: the chosen one, or one beside what it is made from.

    Raises:
        UserError: there is something in it already which may not be replaced.
    """
    source = beside.expanduser().absolute()
    target = (chosen or source.with_name(source.name + ending)).expanduser().absolute()
    remove_leftovers(target.parent)
    if target.exists() and not target.is_dir():
        raise UserError(f"{target} is a file: choose a folder", setting="output_dir")
    if not target.exists() or not any(target.iterdir()):
        return target
    if not overwrite:
        raise UserError(
            f"{target} is not empty: choose another folder, or give `overwrite` to replace it", setting="output_dir"
        )
    names = {path.name for path in target.iterdir()}
    if not names.intersection(_OF_A_MODEL) and not any(name.endswith(".gguf") for name in names):
        raise UserError(
            f"{target} holds no model that `overwrite` could replace: choose another folder", setting="output_dir"
        )
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
        raise UserError(
            f"no space is left for {target}: free some, or choose another folder", setting="output_dir"
        ) from error
    except PermissionError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}", setting="output_dir") from error


def size_of(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
