"""`emit_object` and its reader under agent-lightning's module name."""

from .emit import emit_object
from .readers import get_object_value

__all__ = ["emit_object", "get_object_value"]
