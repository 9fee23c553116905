"""mini-agentic-rl: train the LLM agent you already have, on the computer you already have.

Names are loaded when they are first asked for, so that importing the package costs nothing.
"""

import os

import lazy_loader

from .compat import install as _find_older_names

__version__ = "0.1.0"

_find_older_names()

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

if "MINI_AGENTIC_RL_ATTEMPT" in os.environ:  # an agent has started this process: its LLM calls are that rollout's
    from .attribution import watch_clients as _watch_clients

    _watch_clients()
