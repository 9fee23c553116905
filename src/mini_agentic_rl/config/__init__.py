"""The configuration of the package: the base of every settings class, environment variables, and the cache folder."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
