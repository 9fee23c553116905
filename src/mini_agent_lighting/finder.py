"""The import hook behind the older name: it finds `mini_agent_lighting.X` as `mini_agentic_rl.X`.

The loader hands out the module that is there (or imports it) instead of making one, so that there is one object under
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
from typing import Final

OLD: Final = "mini_agent_lighting"
NEW: Final = "mini_agentic_rl"

OLDER_NAMES: Final = {
    "algorithm.fast": "algorithm.baseline",
    "algorithm.mini_grpo": "algorithm.grpo.mini_grpo",
    "litagent.litagent": "litagent.agent",
    "runner.agent": "runner.agent_runner",
    "mini_llm_server": "gateway.http.server",
}
"""Modules that have another name now, without the names of the packages."""

OWN: Final = "utils"
"""The one package that exists under the older name alone."""


class OldNameFinder(MetaPathFinder):
    """Finds what is below the older name; what it does not know, nobody does."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{OLD}."):
            return None
        name = fullname.removeprefix(f"{OLD}.")
        if name == OWN:
            return PathFinder.find_spec(fullname, [str(Path(__file__).parent)])
        try:
            real = importlib.util.find_spec(f"{NEW}.{OLDER_NAMES.get(name, name)}")
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
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has been executed; only the spec that the import system has put into it is taken out again."""
        module.__spec__ = self._spec

    def get_code(self, fullname: str) -> CodeType | None:
        """For `python -m`."""
        loader = self._real.loader
        return loader.get_code(self._real.name) if isinstance(loader, InspectLoader) else None


def install() -> None:
    """Ask this finder first from now on."""
    if not any(isinstance(finder, OldNameFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, OldNameFinder())
