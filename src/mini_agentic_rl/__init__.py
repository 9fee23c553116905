"""mini-agentic-rl: train the LLM agent you already have, on the computer you already have.

Names are loaded when they are first used, so that importing the package costs nothing.
"""

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import lazy_loader

from .compat import install as _find_older_names

__version__ = "0.2.0"

_find_older_names()

_listed, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """Return a name of the stub; else a module of the package, as `agl.emitter`, which need not be imported before."""
    try:
        return _listed(name)
    except AttributeError:
        full = f"{__name__}.{name}"
        if name.startswith("_") or find_spec(full) is None:
            raise
        return import_module(full)


if "MINI_AGENTIC_RL_ATTEMPT" in os.environ:  # an agent has started this process: its LLM calls are that rollout's
    from .attribution import watch_clients as _watch_clients

    _watch_clients()
