"""The order in which the Python of a test command finds modules: those that an agent has added come last.

Python and pytest put the folder of the tests before all others, so that an `iniconfig.py`, `pdb.py` or `xml/` beside
the tests would be imported in place of the module of that name. This file, with a call of `find_last` at its end, is
the `sitecustomize` of every Python that the test command starts.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from typing import Any


def find_last(folder: str, added: Sequence[str]) -> None:
    """Have modules of a folder be found after all others.

    Args:
        added: paths of the modules without their suffixes, relative to the folder.
    """
    modules = {os.path.join(os.path.realpath(folder), name) for name in added}

    class AddedLast:
        """Finds what an added module would hide."""

        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
            if path is not None:  # within a package
                return None
            others = [one for one in sys.path if os.path.join(os.path.realpath(one or "."), name) not in modules]
            return importlib.machinery.PathFinder.find_spec(name, others, target) if others != sys.path else None

    sys.meta_path.insert(sys.meta_path.index(importlib.machinery.PathFinder), AddedLast)
