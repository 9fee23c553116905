"""The import finder for older names.

Its loader returns the existing module instead of creating one, so that both names mean the same object: the classes are
identical, pickles of one name load under the other, and the module's state exists once.
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
"""Folder on the import path of child processes, with a module of each adopted name that adopts it there."""

_adopted: dict[str, str] = {}
"""Adopted packages: top-level name → the module that is adopted with everything below it."""


class OlderNameFinder(MetaPathFinder):
    """Finds moved modules, and everything below the older name of the package and below the adopted names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec whose loader returns the module under its current name; None for a name that was not moved."""
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
    """Loads a module by returning the module of another name."""

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
        """Restore the spec of the module, which the import system has replaced; the module is already executed."""
        module.__spec__ = self._spec

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code, for `python -m`."""
        loader = self._real.loader
        return loader.get_code(self._real.name) if isinstance(loader, InspectLoader) else None


class _CalledModule(ModuleType):
    """A module that can be called like the function in it with the module's name."""

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **keywords)


def adopt(name: str) -> None:
    """Make a name an alias of this package.

    If only a part of an installed package is adopted, its other modules stay as they are.
    """
    package = name.partition(".")[0]
    _adopted[package] = name if name != package and _installed(package) is not None else package
    install()


def is_ours(module: ModuleType) -> bool:
    """Return True if a module belongs to this package, under any name."""
    return f"{module.__name__}.".startswith(f"{PACKAGE}.")


def _installed(package: str) -> ModuleSpec | None:
    """Return the spec of another package if it is installed."""
    return PathFinder.find_spec(package, [folder for folder in sys.path if folder != str(IMPORT_PATH)])


def install() -> None:
    """Install this finder in front of all others."""
    if not any(isinstance(finder, OlderNameFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, OlderNameFinder())
