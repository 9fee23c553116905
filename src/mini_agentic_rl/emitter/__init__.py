"""Emitters record facts about a rollout as spans; readers get them back from the spans.

Without `propagate=False` an emitter needs an open trace in its task and raises RuntimeError where there is none.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
