"""Emitters record facts about a rollout as spans; the getters read them from spans.

An emitter raises RuntimeError if its task has no open trace, except with `propagate=False`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
