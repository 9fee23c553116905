"""The store over HTTP: one table of routes, and the server, the client and the OTLP intake made from it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
