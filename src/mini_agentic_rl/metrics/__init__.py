"""Metrics: the numbers of a run, shown on the console and kept in files or services. No torch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
