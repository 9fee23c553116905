"""Losses of the policy gradient: one file each, and the tables from which a setting chooses.

A new loss is a file that defines `LOSS`, a `PolicyLoss` around a pure function, and its line in `LOSSES`; a published
variant is an entry of `PRESETS`. The updates compute what the chosen loss says it needs, and know none by name. A
program may add entries of its own to both tables before it makes settings.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import WrapValidator

from .aggregation import Aggregation, term_weights
from .base import ClipRange, LossTerms, PolicyLoss, Surrogate
from .importance import ImportanceCorrection, importance_correction
from .kl import KLEstimator, kl
from .presets import PRESETS

__all__ = [
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
    "kl",
    "term_weights",
]

LOSSES: dict[str, PolicyLoss] = {
    name: import_module(f"{__name__}.{name}").LOSS
    for name in (
        "clip",
        "gspo",
        "cispo",
    )
}
"""The losses by the names under which `policy_loss` chooses them, which are those of their files."""


def _key_of(table: dict[str, Any]) -> WrapValidator:
    """Return a validator that also takes what was added to a table after its choices were listed."""
    return WrapValidator(lambda value, handler: value if isinstance(value, str) and value in table else handler(value))


if TYPE_CHECKING:
    PolicyLossName: TypeAlias = str
    PresetName: TypeAlias = str
else:  # the choices that the doors offer
    PolicyLossName = Annotated[Literal[tuple(LOSSES)], _key_of(LOSSES)]
    PresetName = Annotated[Literal[tuple(PRESETS)], _key_of(PRESETS)]
