"""Agents of agent-lightning 1.0: classes with a `run` method, each rollout a process of its own."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
