"""A file that cannot be read as what it should be is a person's to mend: one line that names it.

    with reading(folder / "state.json", setting="resume"):
        ...                                            # whatever is raised in here is the fault of the file

Libraries raise errors of many kinds over damaged files, often of a torn archive inside, and seldom with its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ..errors import UserError

_LONGEST: Final = 200
"""Characters of a library's reason that are told."""


class DamagedFileError(UserError):
    """Report that a file or folder is damaged, incomplete, or something else than it should be."""


@contextmanager
def reading(path: Path | str, *, setting: str | None = None, advice: str = "") -> Iterator[None]:
    """Blame the file for whatever goes wrong while it is read.

    Args:
        path: what is told.
        setting: the setting that chose it.
        advice: what to do, behind a semicolon.

    Raises:
        UserError: as it was raised inside.
        DamagedFileError: anything else went wrong.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # of parsers, archives, pickles and tensors: each has its own, and some have none
        raise DamagedFileError(damage(path, error, advice), setting=setting) from error


def damage(path: Path | str, error: BaseException, advice: str = "") -> str:
    """Return the line that names a damaged file."""
    lines = str(error).strip().splitlines() or [""]
    reason = f"{type(error).__name__}: {lines[0].strip()}"[:_LONGEST].rstrip(": ")
    return f"{path} is damaged or incomplete ({reason})" + (f"; {advice}" if advice else "")
