"""Which side of a training a command is, as the environment says: the algorithm, runners alone, or both."""

from __future__ import annotations

from typing import cast, get_args

from ..config import LightningEnvVar, resolve_str_env_var
from ..errors import UserError
from ..execution import Role


def current_role() -> Role:
    """What AGL_CURRENT_ROLE says; `both` where it is not set.

    Raises:
        UserError: it says something else.
    """
    chosen = resolve_str_env_var(LightningEnvVar.AGL_CURRENT_ROLE, fallback="both")
    if chosen not in get_args(Role):
        raise UserError(f"AGL_CURRENT_ROLE={chosen!r}: set it to {', '.join(get_args(Role))}, or leave it unset")
    return cast(Role, chosen)
