"""Samplers of tokens for the gateway: ids in, ids out, no text.

`Backend` is the protocol; `PolicyBackend`, loaded when it is asked for, is the policy of this process behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .base import Backend, BackendLoad

if TYPE_CHECKING:
    from .policy import PolicyBackend

__all__ = ["Backend", "BackendLoad", "PolicyBackend"]


def __getattr__(name: str) -> Any:
    if name == "PolicyBackend":
        from .policy import PolicyBackend

        return PolicyBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
