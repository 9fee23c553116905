"""The web dashboard: pages over run folders and stores that only read. See `app.py` for what is served."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
