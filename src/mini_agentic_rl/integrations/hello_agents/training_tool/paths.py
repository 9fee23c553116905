"""The paths that an agent may read and write: output folders inside one root, data files there or in named folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ....datasets import is_data_file, is_hub_name, split_style, task_names
from ....policy import EMBEDDED_NAMES, adapter_folder, base_model_of
from .parameters import ToolError


class AllowedPaths:
    """The folders of a tool.

    Args:
        root: output folders are inside it; relative paths begin there.
        data_folders: further folders whose files may be read as data sets.
        model_folders: further folders whose models may be loaded.
    """

    def __init__(
        self,
        root: str | Path,
        data_folders: Sequence[str | Path] = (),
        model_folders: Sequence[str | Path] = (),
    ) -> None:
        self.root = Path(root).expanduser().resolve()
        self._loadable = (self.root, *(Path(folder).expanduser().resolve() for folder in model_folders))
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
        """Return a model: the path where the name is that of a folder that may be loaded, else the name itself.

        Raises:
            ToolError: it is a folder elsewhere, holds a link to elsewhere, or is an adapter of a model elsewhere.
        """
        if name.lower() in EMBEDDED_NAMES:
            return name
        here = Path(name).expanduser().resolve()  # what a loader would take the name for
        found = next((folder for folder in (self._absolute(name), here) if self._may_load(folder)), None)
        if found is not None and found.exists():
            for entry in found.rglob("*"):
                if not self._may_load(entry.resolve()):
                    raise ToolError(f"model_name={name!r}: {entry.name} in it is a link to elsewhere")
            adapter = adapter_folder(found)
            if adapter is not None:
                self.model(base_model_of(adapter))
            return str(found)
        is_local = name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name
        if here.exists() or self._absolute(name).exists() or (is_local and found is None):
            folders = ", ".join(map(str, self._loadable))
            raise ToolError(f"model_name={name!r}: models are loaded inside {folders}; put it there")
        return name

    def _may_load(self, path: Path) -> bool:
        return any(path.is_relative_to(folder) for folder in self._loadable)

    def dataset(self, name: str) -> str:
        """Return a data set by name, or the path of one that may be read.

        Raises:
            ToolError: there is no such data set, or it is elsewhere. `module:function`, which would run code, is none.
        """
        rest, as_text = split_style(name)
        if as_text:
            return f"text:{self.dataset(rest)}"
        if name.partition(":")[0] in task_names():
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
            f"dataset={name!r} is unknown. Allowed: {', '.join(task_names())}, the path of a file, owner/name on the "
            "Hugging Face Hub, or a registered name"
        )

    def _absolute(self, name: str) -> Path:
        return (self.root / Path(name).expanduser()).resolve()
