"""The trainer, the run folder that it writes, and the report on it. All but settings loads when it is asked for."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
