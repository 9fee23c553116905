"""Cross-entropy beside the policy gradient: terms that the policy did not sample, and is to predict.

    sum over terms of -weight * log pi(token)

`echo` are what the environment said (ECHO; see `grpo/echo.py`), `sft` demonstrations (see `grpo/demonstrations.py`).
Their terms have no part in the policy gradient: their weight there is 0. The coefficient, and the normalisation, are in
the weights, so that chunks simply add up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from ...policy import LossInputs


def imitation(inputs: LossInputs) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the name, the cross-entropy, and the sum of the weights, of each kind of terms that are imitated."""
    streams = inputs.streams
    for name, weights_S in (("echo", streams.observation_weights_S), ("sft", streams.demonstration_weights_S)):
        if weights_S is not None:
            yield name, -(weights_S * inputs.logprobs_S).sum(), weights_S.sum()
