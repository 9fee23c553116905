"""Exports that other programs load: an adapter merged into its base, an adapter in plain peft form, a GGUF file.

`merge` and `export` need torch, and are loaded when they are asked for; their settings are not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .settings import ExportSettings, MergeSettings, ResultSettings

if TYPE_CHECKING:
    from .formats import export
    from .merged_model import merge

__all__ = ["ExportSettings", "MergeSettings", "ResultSettings", "export", "merge"]

_LATER = {"export": "formats", "merge": "merged_model"}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
