"""Protocols of token servers: requests and answers of each kind of server, as token ids.

Loaded when it is asked for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
