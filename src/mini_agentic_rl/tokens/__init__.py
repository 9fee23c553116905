"""Tokens: what is asked of a sampler, what it drew, and the tree that training sees. numpy only."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
