"""The folder of a result: whole or not there, and never a replacement that nobody asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from ...errors import UserError
from ...files import DiskFullError, one_writer, remove_leftovers, write_folder
from ...policy import ADAPTER_CONFIG

_OF_A_MODEL = ("config.json", ADAPTER_CONFIG)
_SUFFIXES = (".json", ".jinja", ".safetensors", ".gguf", ".model")
_NAMES = ("merges.txt", "vocab.txt", "README.md")


@contextmanager
def target_folder(chosen: Path | None, beside: Path, ending: str, *, overwrite: bool) -> Iterator[Path]:
    """Yield the folder for a result: the chosen one, or one beside what it is made from. Nobody else writes it within.

    Raises:
        UserError: there is something in it already which may not be replaced, or another process writes it.
    """
    source = beside.expanduser().absolute()
    target = (chosen or source.with_name(source.name + ending)).expanduser().absolute()
    with one_writer(target, beside=True):
        remove_leftovers(target.parent, target.name)
        _refuse_to_replace(target, overwrite=overwrite)
        with one_writer(target) if target.exists() else nullcontext():  # a run may be writing into it
            pass
        yield target


def _refuse_to_replace(target: Path, *, overwrite: bool) -> None:
    if target.exists() and not target.is_dir():
        raise UserError(f"{target} is a file: choose a folder", setting="output_dir")
    if not target.exists() or not any(target.iterdir()):
        return
    if not overwrite:
        raise UserError(
            f"{target} is not empty: choose another folder, or give `overwrite` to replace it", setting="output_dir"
        )
    names = {path.name for path in target.iterdir()}
    if not names.intersection(_OF_A_MODEL) and not any(name.endswith(".gguf") for name in names):
        raise UserError(
            f"{target} holds no model that `overwrite` could replace: choose another folder", setting="output_dir"
        )
    foreign = sorted(path.name for path in target.iterdir() if not _is_of_a_model(path))
    if foreign:
        raise UserError(
            f"{target} holds {foreign[0]}, which no export wrote, and replacing the folder would delete it: choose "
            "another folder",
            setting="output_dir",
        )


def _is_of_a_model(path: Path) -> bool:
    """Return whether a file or folder is one that a model or an adapter is made of."""
    if path.is_dir():
        return (path / ADAPTER_CONFIG).is_file() or path.name.startswith(".")
    return path.suffix in _SUFFIXES or path.name in _NAMES or path.name.startswith(".")


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
