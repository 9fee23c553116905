"""The paths that an agent may read and write: output folders inside one root, data files there or in named folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..datasets import NAMES, is_data_file, is_hub_name
from .parameters import ToolError


class AllowedPaths:
    """The folders of a tool.

    Args:
        root: output folders are inside it; relative paths begin there.
        data_folders: further folders whose files may be read as data sets.
    """

    def __init__(self, root: str | Path, data_folders: Sequence[str | Path] = ()) -> None:
        self.root = Path(root).expanduser().resolve()
        self._readable = (self.root, *(Path(folder).expanduser().resolve() for folder in data_folders))

    def output(self, output_dir: str) -> Path:
        """Return the output folder of this name.

        Raises:
            ToolError: it is not inside the root.
        """
        folder = self._absolute(output_dir)
        if folder == self.root or not folder.is_relative_to(self.root):
            raise ToolError(f"output_dir={output_dir!r}: trainings write inside {self.root}; give a folder there")
        return folder

    def model(self, name: str) -> str:
        """Return a model: the path where the name is that of a folder inside the root, else the name itself."""
        folder = self._absolute(name)
        return str(folder) if folder.is_dir() and folder.is_relative_to(self.root) else name

    def dataset(self, name: str) -> str:
        """Return a data set by name, or the path of one that may be read.

        Raises:
            ToolError: there is no such data set, or it is elsewhere. `module:function`, which would run code, is none.
        """
        if name.partition(":")[0] in NAMES:
            return name
        path = self._absolute(name)
        if path.exists() or is_data_file(path):
            if not any(path.is_relative_to(folder) for folder in self._readable):
                folders = ", ".join(map(str, self._readable))
                raise ToolError(f"dataset={name!r}: files are read inside {folders}; put it there")
            if not path.exists():
                raise ToolError(f"dataset={name!r}: there is no file {path}")
            return str(path)
        if is_hub_name(name):
            return name
        raise ToolError(
            f"dataset={name!r} is unknown. Allowed: {', '.join(NAMES)}, the path of a file, owner/name on the Hugging "
            "Face Hub, or a registered name"
        )

    def _absolute(self, name: str) -> Path:
        return (self.root / Path(name).expanduser()).resolve()
