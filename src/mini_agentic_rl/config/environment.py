"""The environment variables that the package reads, and its cache folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Final, Protocol, TypeVar, cast, overload

CACHE_VARIABLE: Final = "MINI_AGENTIC_RL_CACHE"
"""Environment variable that names the cache folder."""
KERNELS_VARIABLE: Final = "MINI_AGENTIC_RL_KERNELS"
"""Environment variable; `torch` turns the compiled C++ kernels off."""


def cache_dir() -> Path:
    """Return the folder of models and generated data: `$MINI_AGENTIC_RL_CACHE`, or one in the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "mini-agentic-rl" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "mini-agentic-rl"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mini-agentic-rl"


class LightningEnvVar(Enum):
    """Environment variables that choose how an execution strategy runs, and how the store is reached."""

    AGL_CURRENT_ROLE = "AGL_CURRENT_ROLE"
    """Role of this process: `algorithm`, `runner` or `both`."""
    AGL_SERVER_HOST = "AGL_SERVER_HOST"
    """Host of the store server."""
    AGL_SERVER_PORT = "AGL_SERVER_PORT"
    """Port of the store server."""
    AGL_MANAGED_STORE = "AGL_MANAGED_STORE"
    """True if the strategy itself starts a server for the store."""
    AGL_API_KEY = "AGL_API_KEY"
    """Bearer token of the store server; needed unless it listens on the loopback address only."""


T = TypeVar("T")


class EnvVarResolver(Protocol[T]):
    """Returns `override` if given, else the parsed value of the variable, else `fallback`.

    Raises:
        ValueError: the variable cannot be parsed.
    """

    @overload
    def __call__(self, env_var: LightningEnvVar, override: T | None = None, *, fallback: T) -> T: ...
    @overload
    def __call__(self, env_var: LightningEnvVar, override: T, fallback: T | None = None) -> T: ...
    @overload
    def __call__(self, env_var: LightningEnvVar, override: T | None = None, fallback: T | None = None) -> T | None: ...


def _resolver(read: Callable[[str], T], expected: str) -> EnvVarResolver[T]:
    def resolve(env_var: LightningEnvVar, override: T | None = None, fallback: T | None = None) -> T | None:
        text = os.environ.get(env_var.value)
        if override is not None or text is None:
            return fallback if override is None else override
        try:
            return read(text)
        except (KeyError, ValueError):
            raise ValueError(f"{env_var.value}={text!r}: expected {expected}") from None

    return cast("EnvVarResolver[T]", resolve)


_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}

resolve_bool_env_var = _resolver(lambda text: _BOOLEANS[text.strip().lower()], f"one of {', '.join(_BOOLEANS)}")
"""Parses 1/true/yes/on and 0/false/no/off, in any case."""
resolve_int_env_var = _resolver(int, "an integer")
"""Parses a decimal integer."""
resolve_str_env_var = _resolver(str, "a text")
"""Returns the text unchanged."""
