"""The import finder behind older names.

Its loader hands out the module that is there (or imports it) instead of making one, so that there is one object under
both names: classes are the same classes, what was pickled under one name is read under the other, and the state of a
module is there once.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

from .names import CALLED, OLDER_PACKAGE, PACKAGE, current

IMPORT_PATH: Final = Path(__file__).with_name("import_path")
"""Folder on the import path of processes that are started later: a module of each adopted name, which adopts it."""

_adopted: dict[str, str] = {}
"""Packages of others whose names lead here: name → the module below which they do."""


class OlderNameFinder(MetaPathFinder):
    """Finds what has moved, and everything below the older name of the package and below the adopted ones."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec whose loader hands out the module as it is called now; None for a name that nobody moved."""
        package, _, name = fullname.partition(".")
        if package in _adopted:
            if not f"{fullname}.".startswith(f"{_adopted[package]}."):
                return None if name else _installed(package)
        elif not name or package not in (PACKAGE, OLDER_PACKAGE):
            return None
        now = f"{PACKAGE}.{current(name)}" if name else PACKAGE
        if now == fullname:
            return None
        try:
            real = importlib.util.find_spec(now)
        except ModuleNotFoundError:
            return None
        if real is None:
            return None
        is_package = real.submodule_search_locations is not None
        return ModuleSpec(fullname, _SameModule(real), origin=real.origin, is_package=is_package)


class _SameModule(Loader):
    """Loads a module by handing out the one of another name."""

    def __init__(self, real: ModuleSpec) -> None:
        self._real = real
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._real.name)
        self._spec = module.__spec__
        if spec.name.partition(".")[2] in CALLED:
            module.__class__ = _CalledModule
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Take out the spec that the import system has put into the module, which was executed long ago."""
        module.__spec__ = self._spec

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code, for `python -m`."""
        loader = self._real.loader
        return loader.get_code(self._real.name) if isinstance(loader, InspectLoader) else None


class _CalledModule(ModuleType):
    """A module that is called as the function of its own last name."""

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **keywords)


def adopt(name: str) -> None:
    """Let the name of a package lead here.

    Where the package is installed and only a part of it is to be ours, the rest of it stays what it is.
    """
    package = name.partition(".")[0]
    _adopted[package] = name if name != package and _installed(package) is not None else package
    install()


def is_ours(module: ModuleType) -> bool:
    """Return True if a module is one of this package, whatever name it was found under."""
    return f"{module.__name__}.".startswith(f"{PACKAGE}.")


def _installed(package: str) -> ModuleSpec | None:
    """Return the spec of a package of others, where it is installed."""
    return PathFinder.find_spec(package, [folder for folder in sys.path if folder != str(IMPORT_PATH)])


def install() -> None:
    """Ask this finder first from now on."""
    if not any(isinstance(finder, OlderNameFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, OlderNameFinder())
