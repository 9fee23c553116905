"""Load what a setting names beyond the built-in names: a plugin, or `module:Class` of the user's own."""

from __future__ import annotations

from typing import Any

from ..errors import UserError
from ..plugins import Kind, load_plugin, or_plugin
from ..user_code import load_object


def own_object(name: str, kind: Kind, *, setting: str, known: str) -> Any:
    """Return the object of a name; a class is called without arguments.

    Args:
        kind: the plugins that a name without a colon is looked up among.
        setting: the setting that gave the name, which errors name.
        known: the names that could have been given instead, as a list in words.

    Raises:
        UserError: there is none of this name, or it cannot be imported or made.
    """
    found = None if ":" in name else load_plugin(kind, name, setting=setting)
    if ":" not in name and found is None:
        raise UserError(f"{name!r} is unknown: give {known}{or_plugin(kind)}", setting=setting)
    try:
        found = load_object(name) if found is None else found
        return found() if isinstance(found, type) else found
    except UserError:
        raise
    except Exception as error:  # the user's module may fail in any way while it is imported
        raise UserError(f"{name!r} cannot be loaded: {type(error).__name__}: {error}", setting=setting) from error
