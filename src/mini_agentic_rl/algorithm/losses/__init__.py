"""Losses of the policy gradient: one file each, and the tables from which a setting chooses.

A new loss is a file that defines `LOSS`, a `PolicyLoss` around a pure function, and its line in `LOSSES`; a published
variant is an entry of `PRESETS`. The updates compute what the chosen loss says it needs, and know none by name. A
program may add entries of its own to both tables before it makes settings.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

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


if TYPE_CHECKING:
    PolicyLossName: TypeAlias = str
    PresetName: TypeAlias = str
else:  # the choices that the doors offer
    PolicyLossName = Annotated[Literal[tuple(LOSSES)], key_of(LOSSES)]
    PresetName = Annotated[Literal[tuple(PRESETS)], key_of(PRESETS)]
