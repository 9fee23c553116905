"""The configuration of the package: the base of every settings class, environment variables, and the cache folder."""

from .environment import (
    CACHE_VARIABLE,
    LightningEnvVar,
    cache_dir,
    resolve_bool_env_var,
    resolve_int_env_var,
    resolve_str_env_var,
)
from .settings import JsonSettings, SeedSettings, Setting, Settings, extra_of, restated

__all__ = [
    "CACHE_VARIABLE",
    "JsonSettings",
    "LightningEnvVar",
    "SeedSettings",
    "Setting",
    "Settings",
    "cache_dir",
    "extra_of",
    "resolve_bool_env_var",
    "resolve_int_env_var",
    "resolve_str_env_var",
    "restated",
]
