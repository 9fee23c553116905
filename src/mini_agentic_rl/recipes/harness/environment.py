"""The environment of a command: the model's address under the names that programs read, the task, and little else."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...errors import UserError
from ...redaction import remember_secrets

_KEPT: Final = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR")
_LONGEST: Final = 100_000
"""Characters of a variable that every system takes."""


def given_variables(settings: Sequence[str]) -> dict[str, str]:
    """Return the variables that the person asks for; keys among them are hidden from now on.

    Raises:
        UserError: one has no name, or is to be taken from here, where it is not set.
    """
    found = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not name or (not equals and name not in os.environ):
            why = "a variable has no name" if not name else f"{name!r} is not set here: write NAME=VALUE"
            raise UserError(why, setting="agent_env")
        found[name] = value if equals else os.environ[name]
    remember_secrets({"env": found})
    return found


def base_variables(home: str, temporary: str) -> dict[str, str]:
    """Return what every command gets."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {
        **kept,
        "HOME": home,
        "TMPDIR": temporary,
        "XDG_CACHE_HOME": f"{home}/.cache",
        "XDG_CONFIG_HOME": f"{home}/.config",
        "PYTHONDONTWRITEBYTECODE": "1",
        "NO_PROXY": "*",
        "no_proxy": "*",
    }


def model_variables(base_url: str, model: str, key: str, sampling: Mapping[str, Any]) -> dict[str, str]:
    """Return the address and the name of the model, as OpenAI's and Anthropic's programs read them."""
    return {
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_BASE": base_url,
        "OPENAI_API_KEY": key,
        "OPENAI_MODEL": model,
        "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": key,
        "ANTHROPIC_MODEL": model,
        "ANTHROPIC_SMALL_FAST_MODEL": model,
        **{f"MODEL_{name.upper()}": str(value) for name, value in sampling.items() if isinstance(value, int | float)},
    }


def task_variables(prompt: str, task_file: str) -> dict[str, str]:
    """Return the task: its text, where it is not too long for a variable, and its file."""
    text = {"TASK_PROMPT": prompt} if len(prompt) <= _LONGEST and "\0" not in prompt else {}
    return {"TASK_FILE": task_file, **text}
