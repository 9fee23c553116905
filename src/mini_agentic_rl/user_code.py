"""Import of the user's own functions and classes by `module:name`."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any


def load_object(name: str) -> Any:
    """Return the object `module:name`; the module may be in the working directory, as with `python -m`.

    Raises:
        Exception: there is no such module or name, or importing the module fails.
    """
    module, _, attribute = name.partition(":")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return getattr(import_module(module), attribute)
