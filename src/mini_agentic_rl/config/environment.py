"""The environment variables that the package reads, and its cache folder."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Final, overload

from platformdirs import user_cache_path

CACHE_VARIABLE: Final = "MINI_AGENTIC_RL_CACHE"
"""Environment variable that names the cache folder."""


def cache_dir() -> Path:
    """Where models and generated data are kept: `$MINI_AGENTIC_RL_CACHE`, or the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen).expanduser() if chosen else user_cache_path("mini-agentic-rl", appauthor=False)


class LightningEnvVar(Enum):
    """Environment variables that choose how an execution strategy runs, and how the store is reached."""

    AGL_CURRENT_ROLE = "AGL_CURRENT_ROLE"
    """Which side this process runs: `algorithm`, `runner` or `both`."""
    AGL_SERVER_HOST = "AGL_SERVER_HOST"
    """Host of the store server."""
    AGL_SERVER_PORT = "AGL_SERVER_PORT"
    """Port of the store server."""
    AGL_MANAGED_STORE = "AGL_MANAGED_STORE"
    """True if the strategy wraps the store in a server and clients itself."""
    AGL_API_KEY = "AGL_API_KEY"
    """Bearer token of the store server; needed where it listens on anything but this computer's loopback."""


_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


@overload
def resolve_bool_env_var(env_var: LightningEnvVar, override: bool | None = None, *, fallback: bool) -> bool: ...
@overload
def resolve_bool_env_var(env_var: LightningEnvVar, override: bool, fallback: bool | None = None) -> bool: ...
@overload
def resolve_bool_env_var(
    env_var: LightningEnvVar, override: bool | None = None, fallback: bool | None = None
) -> bool | None: ...
def resolve_bool_env_var(
    env_var: LightningEnvVar, override: bool | None = None, fallback: bool | None = None
) -> bool | None:
    """`override` if given, else the variable read as a truth value, else `fallback`.

    Raises:
        ValueError: the variable holds something other than 1/true/yes/on or 0/false/no/off, in any case.
    """
    if override is not None:
        return override
    text = os.environ.get(env_var.value)
    if text is None:
        return fallback
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(f"{env_var.value}={text!r}: expected one of {', '.join(_TRUE + _FALSE)}")


@overload
def resolve_int_env_var(env_var: LightningEnvVar, override: int | None = None, *, fallback: int) -> int: ...
@overload
def resolve_int_env_var(env_var: LightningEnvVar, override: int, fallback: int | None = None) -> int: ...
@overload
def resolve_int_env_var(
    env_var: LightningEnvVar, override: int | None = None, fallback: int | None = None
) -> int | None: ...
def resolve_int_env_var(
    env_var: LightningEnvVar, override: int | None = None, fallback: int | None = None
) -> int | None:
    """`override` if given, else the variable read as a decimal integer, else `fallback`.

    Raises:
        ValueError: the variable holds something other than an integer.
    """
    if override is not None:
        return override
    text = os.environ.get(env_var.value)
    if text is None:
        return fallback
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{env_var.value}={text!r}: expected an integer") from None


@overload
def resolve_str_env_var(env_var: LightningEnvVar, override: str | None = None, *, fallback: str) -> str: ...
@overload
def resolve_str_env_var(env_var: LightningEnvVar, override: str, fallback: str | None = None) -> str: ...
@overload
def resolve_str_env_var(
    env_var: LightningEnvVar, override: str | None = None, fallback: str | None = None
) -> str | None: ...
def resolve_str_env_var(
    env_var: LightningEnvVar, override: str | None = None, fallback: str | None = None
) -> str | None:
    """`override` if given, else the variable's text, else `fallback`."""
    return override if override is not None else os.environ.get(env_var.value, fallback)
