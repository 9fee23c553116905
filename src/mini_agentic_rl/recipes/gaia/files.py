"""Reading the file that comes with a question, page by page, in a process that can do no harm (see `file_worker`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ...errors import MissingPackageError
from ...processes import DeadlineProcess, EndedError, LateError
from .toolbox import FunctionTool

PAGE = 6000
"""Characters of a file that one call shows."""

READ_SECONDS: Final = 20.0
"""Seconds that reading a file may take."""


def read_file_tool(path: str | Path, name: str) -> FunctionTool:
    """Return a tool that shows one file, page by page, and no other file.

    Args:
        path: where the file is.
        name: what the question calls it.
    """
    file = AttachedFile(Path(path))

    def run(arguments: Mapping[str, Any]) -> str:
        offset = arguments.get("offset", 0)
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise ValueError("offset must be a number of characters, 0 or more")
        text, length = file.page(offset)
        end = offset + PAGE
        if offset and offset >= length:
            raise ValueError(f"the file has {length} characters")
        rest = f"\n[{length - end} more characters; go on with offset {end}]" if length > end else ""
        return text + rest

    return FunctionTool(
        "read_file",
        f"Read the attached file {name}. Long files come in pages: give the offset that the page before names.",
        {"type": "object", "properties": {"offset": {"type": "integer", "minimum": 0}}, "required": []},
        run,
    )


class AttachedFile:
    """A file, read by a process that starts at the first question and ends with this object."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process = DeadlineProcess(f"{__package__}.file_worker", str(path.absolute()))

    def page(self, offset: int) -> tuple[str, int]:
        """Return the text from a character on, and the length of the whole. Blocks.

        Raises:
            ValueError: the file cannot be read, or takes too much; the message is for the model to read.
            MissingPackageError: a spreadsheet, and openpyxl is not installed (extra "gaia").
            OSError: there is no such file, or it may not be read.
        """
        if self._path.suffix.lower() in (".xlsx", ".xlsm"):
            try:
                import openpyxl  # noqa: F401  # its own process needs it
            except ImportError as error:
                raise MissingPackageError("reading .xlsx files", "openpyxl", extra="gaia") from error
        try:
            found = self._process.ask([offset, PAGE], READ_SECONDS)
        except LateError:
            raise ValueError(f"{self._path.name} takes longer than {READ_SECONDS:g} s to read") from None
        except EndedError:
            raise ValueError(f"{self._path.name} takes too much to read") from None
        if "failure" in found:
            raise OSError(*found["failure"], str(self._path))
        if "error" in found:
            raise ValueError(found["error"])
        return found["text"], found["length"]
