"""Metrics: the numbers of a run, shown on the console and kept in files or services. No torch."""

from ..compat import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
