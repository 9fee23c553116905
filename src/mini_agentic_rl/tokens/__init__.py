"""Requests of tokens, records of sampled tokens, and the token tree that training sees. numpy only."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
