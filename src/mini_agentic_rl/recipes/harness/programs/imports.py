"""Makes the Python of a test command import modules that the agent added after all others.

Python and pytest search the folder of the tests first, so an `iniconfig.py`, `pdb.py` or `xml/` beside the tests would
replace the module of that name. This file, followed by a call of `find_last`, is the `sitecustomize` of every Python
that the test command starts.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from typing import Any


def find_last(folder: str, added: Sequence[str]) -> None:
    """Import modules of a folder after all others.

    Args:
        added: paths of the modules without their suffixes, relative to the folder.
    """
    modules = {os.path.join(os.path.realpath(folder), name) for name in added}

    class AddedLast:
        """Finds the module that an added module would hide."""

        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
            if path is not None:  # within a package
                return None
            others = [place for place in sys.path if os.path.join(os.path.realpath(place or "."), name) not in modules]
            return importlib.machinery.PathFinder.find_spec(name, others, target) if others != sys.path else None

    sys.meta_path.insert(sys.meta_path.index(importlib.machinery.PathFinder), AddedLast)
