"""Weights between the sampler and the learner: sampled by one program, trained by another.

The sampler and the learner compute the same weights' probabilities by different kernels, maybe in different number
formats, so that the tokens come from pi_sampler while the gradient is that of pi. A correction weighs each term by
c, made of k = pi_old(token) / pi_sampler(token), where pi_old is what the *learner* computes before its first step on
the batch. The ratio that is clipped is then pi / pi_old, free of numerical mismatch. A weight of 0 masks the term.

A new one is a file that defines `CORRECTION`, and its name in `CORRECTIONS`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from ..base import Floats, Ints, key_of
from .base import Correction, WeightBounds

__all__ = ["CORRECTIONS", "Correction", "ImportanceCorrection", "WeightBounds", "importance_correction"]

CORRECTIONS: dict[str, Correction] = {
    name: import_module(f"{__name__}.{name}").CORRECTION
    for name in (
        "token",
        "sequence",
        "icepop",
        "geometric",
    )
}
"""The corrections by the names under which `importance_correction` chooses them, which are those of their files."""

_CHOICES = ("none", *CORRECTIONS)

if TYPE_CHECKING:
    ImportanceCorrection: TypeAlias = str
else:  # the choices that the doors offer
    ImportanceCorrection = Annotated[Literal[_CHOICES], key_of(CORRECTIONS.__contains__)]


def importance_correction(
    name: str,
    old_logprobs_S: Floats,
    behaviour_logprobs_S: Floats,
    trajectory_S: Ints,
    cap: float,
    floor: float = 0.0,
) -> Floats:
    """Return the weight c [S] of each term under the correction `name`.

    Args:
        trajectory_S: number of the trajectory of each term.
        cap: upper bound of what is weighed.
        floor: lower bound of it, for those that mask.
    """
    log_ratio_S = old_logprobs_S - behaviour_logprobs_S
    return CORRECTIONS[name].weights(log_ratio_S, trajectory_S, WeightBounds(floor, cap))
