"""The import finder for older names, and `alias`, which imports names of other packages as aliases of this one.

Its loader returns the existing module instead of creating one, so that both names mean the same object: the classes are
identical, pickles of one name load under the other, and the module's state exists once.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

from .names import ALIASES, CALLED, OLDER_PACKAGE, PACKAGE, current

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


def _installed(package: str) -> ModuleSpec | None:
    """Return the spec of another package if it is installed."""
    return PathFinder.find_spec(package, [folder for folder in sys.path if folder != str(IMPORT_PATH)])


def install() -> None:
    """Install this finder in front of all others."""
    if not any(isinstance(finder, OlderNameFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, OlderNameFinder())


def alias(names: Iterable[str] = ALIASES) -> None:
    """Let `import agentlightning`, `agent_framework_lab_lightning` and `hello_agents.rl` find this package.

    The aliases hold for this process and, by a folder of `PYTHONPATH`, for every Python process that it starts.
    With the first name, a trace that is opened by hand has no root span, as in agent-lightning. An installed package
    with one of the names is hidden, of `hello_agents` only its part `rl`. Calling it again changes nothing.

    Raises:
        UserError: the real package has been imported already, or a name is none of the three.
    """
    import wrapt  # here, since this module is imported with the package

    from ..errors import UserError

    names = list(names)
    for name in names:
        if name not in ALIASES:
            raise UserError(f"{name!r} cannot be an alias: expected one of {', '.join(ALIASES)}")
        real = sys.modules.get(name)
        if real is not None and not f"{real.__name__}.".startswith(f"{PACKAGE}."):
            raise UserError(
                f"{name} has been imported already, from {getattr(real, '__file__', None) or 'elsewhere'}: "
                "call mini_agentic_rl.compat.alias() before that, or start the program with "
                "`python -m mini_agentic_rl.compat run`"
            )
        package = name.partition(".")[0]
        part_alone = name != package and _installed(package) is not None  # the other modules stay as they are
        _adopted[package] = name if part_alone else package
    install()
    if "agentlightning" in names:
        wrapt.register_post_import_hook(_omit_root_span, f"{PACKAGE}.tracer.otel")
    folder = str(IMPORT_PATH)
    if folder not in sys.path:
        sys.path.insert(1, folder)
    inherited = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and part != folder]
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, *inherited])


def _omit_root_span(module: ModuleType) -> None:
    """Let traces that are opened by hand have no root span."""
    module.OtelTracer.root_by_hand = False
