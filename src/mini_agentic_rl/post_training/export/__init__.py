"""Exports that other programs load: an adapter merged into its base, an adapter in plain peft form, a GGUF file."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
