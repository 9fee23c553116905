"""Parity of a sampler with the learner: whether both compute the same log-probabilities of the same tokens.

A server that applies no adapter, or an older one, that keeps keys of other weights, or that tells log-probabilities
before the temperature samples from another distribution than the one that is learnt, and nothing else would say so.
So the first tokens that a server samples with new weights are scored by the learner, as they were sampled and in the
ways that they may have come about instead; whichever fits best says what to look at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..errors import UserError
from ..tokens import CompletionRecord
from .scores import Scores

PROBE_TEMPERATURE: Final = 0.7
"""Temperature of the tokens that are compared: not 1, where log-probabilities before and after it are the same."""
_BETTER: Final = 0.5
"""Another way explains the numbers where it differs from them by less than this share of what the right way does."""
_FLOOR: Final = 1e-3
"""Mean differences below this are rounding, whichever way fits best (nats)."""
_OTHER_MODEL: Final = 0.5
"""Mean differences from this on are those of another model (nats)."""


class ParityError(UserError):
    """The sampler and the learner do not compute the same."""


@dataclass(frozen=True)
class Parity:
    """Mean absolute differences (nats) between a sampler's log-probabilities and those of the learner."""

    tokens: int
    """Number of tokens that were compared."""
    difference: float
    """From the learner's, as they should be."""
    before_temperature: float
    """From the learner's, at temperature 1."""
    without_adapter: float | None
    """From those of the bare model; None where there is no adapter."""
    largest: float
    """Largest difference of a token from the learner's."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)

    def cause(self, bound: float) -> str | None:
        """Return what is wrong with the server, and what to look at; None where it fits."""
        if self.difference <= _FLOOR:
            return None
        if self.before_temperature < _BETTER * self.difference:
            return (
                "its log-probabilities are those before the temperature: start vLLM with "
                "--logprobs-mode processed_logprobs (SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB)"
            )
        if self.without_adapter is not None and self.without_adapter < _BETTER * self.difference:
            return "it samples without the adapter: its numbers are those of the bare model"
        if self.difference <= bound:
            return None
        if self.difference >= _OTHER_MODEL:
            return "it serves another base model, or other weights of it"
        return (
            "look at the number format that it computes in (--dtype), the adapter that it applies, and keys that it "
            "keeps of older weights (its prefix cache); or raise `parity_bound`"
        )


async def measure(scores: Scores, records: Sequence[CompletionRecord], adapter: str | None, *, bare: bool) -> Parity:
    """Compare what was sampled with what the learner computes.

    Args:
        scores: the learner.
        records: sampled with `adapter`.
        adapter: as the learner names it.
        bare: whether the learner has a bare model to compare with.
    """
    told = np.concatenate([record.logprobs for record in records])
    right = np.abs(await scores.logprobs(records, adapter) - told)
    unscaled = await scores.logprobs(records, adapter, temperature=1.0)
    without = _mean(await scores.logprobs(records, None) - told) if bare and adapter is not None else None
    return Parity(
        tokens=int(told.size),
        difference=float(right.mean()),
        before_temperature=_mean(unscaled - told),
        without_adapter=without,
        largest=float(right.max()),
    )


def _mean(differences: npt.NDArray[np.float32]) -> float:
    return float(np.abs(differences).mean())
