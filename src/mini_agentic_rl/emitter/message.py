"""`emit_message` and its reader under agent-lightning's module name."""

from .emit import emit_message
from .readers import get_message_value

__all__ = ["emit_message", "get_message_value"]
