"""The user's own functions and classes, by `module:name` as commands and settings give them."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any


def load_object(name: str) -> Any:
    """Return what `module:name` names; the module may lie in the working directory, as with `python -m`.

    Raises:
        Exception: there is no such module or name, or whatever the user's module raises while it is imported.
    """
    module, _, attribute = name.partition(":")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return getattr(import_module(module), attribute)
