"""Adapters convert the spans of a rollout to the data that an algorithm learns from. Pure: no store, no model."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
