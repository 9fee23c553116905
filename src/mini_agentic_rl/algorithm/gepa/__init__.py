"""GEPA: prompts by reflection on what happened, and a Pareto front over the validation tasks."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
