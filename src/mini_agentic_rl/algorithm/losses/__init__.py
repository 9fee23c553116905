"""Losses of the policy gradient: one file each, and the tables from which a setting chooses.

A new loss is a file that defines `LOSS`, a `PolicyLoss` around a pure function, and its line in `LOSSES`; a published
variant is an entry of `PRESETS`. The updates compute what the chosen loss says it needs, and know none by name. A
program may add entries of its own to both tables before it makes settings, and a plugin's loss is added to both when
its name is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from ...errors import UserError
from ...plugins import load_plugin, plugin_has
from .aggregation import Aggregation, term_weights
from .base import ClipRange, LossTerms, PolicyLoss, Surrogate, key_of
from .corrections import CORRECTIONS, ImportanceCorrection, importance_correction
from .kl import KLEstimator, kl
from .presets import PRESETS

__all__ = [
    "CORRECTIONS",
    "LOSSES",
    "PRESETS",
    "Aggregation",
    "ClipRange",
    "ImportanceCorrection",
    "KLEstimator",
    "LossTerms",
    "PolicyLoss",
    "PolicyLossName",
    "PresetName",
    "Surrogate",
    "importance_correction",
    "is_preset",
    "kl",
    "term_weights",
]

LOSSES: dict[str, PolicyLoss] = {
    name: import_module(f"{__name__}.{name}").LOSS
    for name in (
        "clip",
        "gspo",
        "cispo",
        "dppo_tv",
        "dppo_kl",
    )
}
"""The losses by the names under which `policy_loss` chooses them, which are those of their files."""


def is_loss(name: str) -> bool:
    """Return True for a name of `LOSSES`, and for that of a plugin's loss, which is then among them.

    Raises:
        UserError: the plugin's loss cannot be loaded, or is no `PolicyLoss`.
    """
    if name not in LOSSES:
        loss = load_plugin("losses", name, setting="policy_loss")
        if loss is None:
            return False
        if not isinstance(loss, PolicyLoss):
            raise UserError(
                f"the plugin's {name!r} is a {type(loss).__name__}, not a PolicyLoss", setting="policy_loss"
            )
        LOSSES[name] = loss
    return True


def is_preset(name: str) -> bool:
    """Return True for a name of `PRESETS`, and for that of a plugin's loss, which is then a variant of its own.

    Raises:
        UserError: see `is_loss`.
    """
    if name not in PRESETS:
        if not plugin_has("losses", name) or not is_loss(name):
            return False
        PRESETS[name] = {"policy_loss": name}
    return True


if TYPE_CHECKING:
    PolicyLossName: TypeAlias = str
    PresetName: TypeAlias = str
else:  # the choices that the doors offer
    PolicyLossName = Annotated[Literal[tuple(LOSSES)], key_of(is_loss)]
    PresetName = Annotated[Literal[tuple(PRESETS)], key_of(is_preset)]
