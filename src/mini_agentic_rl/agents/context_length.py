"""A conversation that has outgrown its model: how an OpenAI-compatible server says so."""

from __future__ import annotations

from openai import BadRequestError

CODE = "context_length_exceeded"


def outgrew_context(error: BadRequestError) -> bool:
    """Whether the server refused the call because its prompt leaves no room in the model's context."""
    return error.code == CODE
