"""Exports that other programs load: an adapter merged into its base, an adapter in plain peft form, a GGUF file.

`merge` and `export` need torch, and are loaded when they are asked for; their settings are not.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
