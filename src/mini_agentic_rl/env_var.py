"""The environment variables under their older module name."""

from .config import LightningEnvVar, resolve_bool_env_var, resolve_int_env_var, resolve_str_env_var

__all__ = ["LightningEnvVar", "resolve_bool_env_var", "resolve_int_env_var", "resolve_str_env_var"]
