"""Tools of OpenAI's type `custom`, whose input is text: the model is shown functions with one argument that is text.

A grammar for the input stands in the function's description. It does not hold the sampling, so that it is named among
what has no effect.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

_INPUT: Final = "input"


def as_function(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the function that stands for a custom tool, in chat's form."""
    described = [tool["description"]] if isinstance(tool.get("description"), str) else []
    if (grammar := grammar_of(tool)) is not None:
        described.append(f"The input has to follow this {grammar.get('syntax')} grammar:\n{grammar.get('definition')}")
    text = {"type": "object", "properties": {_INPUT: {"type": "string"}}, "required": [_INPUT]}
    about = {"description": "\n\n".join(described)} if described else {}
    return {"type": "function", "function": {"name": tool["name"], **about, "parameters": text}}


def grammar_of(tool: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the grammar of a custom tool's input; None where it is any text."""
    form = tool.get("format")
    return form if isinstance(form, Mapping) and form.get("type") == "grammar" else None


def arguments_of(text: str) -> str:
    """Return the arguments of the function for an input."""
    return json.dumps({_INPUT: text}, ensure_ascii=False)


def input_of(arguments: str) -> str:
    """Return the input that a call of the function has; arguments of another form are the input as they stand."""
    try:
        text = json.loads(arguments)[_INPUT]
    except (ValueError, KeyError, TypeError, RecursionError):
        return arguments
    return text if isinstance(text, str) else arguments
