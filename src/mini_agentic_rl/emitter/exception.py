"""`emit_exception` under agent-lightning's module name."""

from .emit import emit_exception

__all__ = ["emit_exception"]
