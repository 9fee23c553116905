"""Adapters convert the spans of a rollout to training data, without a store or a model."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
