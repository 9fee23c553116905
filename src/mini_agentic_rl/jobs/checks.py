"""Check the model and the role of this process before anything is written or deleted."""

from __future__ import annotations

from typing import cast, get_args

from ..config import LightningEnvVar, resolve_str_env_var
from ..errors import UserError
from ..execution import Role


def check_model(model: str, device: str) -> None:
    """Look for the model. The embedded one is fetched if it is needed.

    Raises:
        UserError: there is no such model or device.
    """
    from transformers import AutoConfig

    from ..policy import cannot_load, resolve_device, resolve_model

    resolve_device(device)
    path = resolve_model(model)
    try:
        AutoConfig.from_pretrained(path)
    except Exception as error:  # of a damaged file it may be any
        raise cannot_load(model, error) from error


def current_role() -> Role:
    """Return what AGL_CURRENT_ROLE says this process runs; `both` where it is not set.

    Raises:
        UserError: it says something else.
    """
    chosen = resolve_str_env_var(LightningEnvVar.AGL_CURRENT_ROLE, fallback="both")
    if chosen not in get_args(Role):
        raise UserError(f"AGL_CURRENT_ROLE={chosen!r}: set it to {', '.join(get_args(Role))}, or leave it unset")
    return cast(Role, chosen)
