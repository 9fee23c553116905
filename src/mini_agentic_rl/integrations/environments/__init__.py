"""Environments of other packages: verifiers, OpenEnv and Gymnasium."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...environments import Environment
from ...errors import UserError
from .gymnasium import GymnasiumEnvironment, gymnasium_environment
from .openenv import OpenEnvEnvironment
from .verifiers import VerifiersEnvironment

__all__ = ["GymnasiumEnvironment", "OpenEnvEnvironment", "VerifiersEnvironment", "make_environment"]


def make_environment(package: str, name: str, options: Mapping[str, Any]) -> Environment:
    """Return the environment of a package, "verifiers", "openenv" or "gymnasium", by its name there.

    Raises:
        UserError: there is none of this name, or an option is unknown.
        MissingPackageError: the package is not installed.
    """
    if package == "verifiers":
        return VerifiersEnvironment(name, options)
    if package == "gymnasium":
        return gymnasium_environment(name, options)
    try:
        return OpenEnvEnvironment(name, **options)
    except TypeError as error:
        raise UserError(
            f"openenv:{name} has the options max_turns, system and reset: {error}", setting="env"
        ) from error
