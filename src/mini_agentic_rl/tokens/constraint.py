"""What limits the tokens of a continuation: a grammar, seen from the sampler as sets of ids. No text, no torch.

The next token is drawn from the policy's distribution with the tokens that are not allowed taken out. What is recorded
stays the log-probability under the whole distribution, which is what the learner computes too. Let p be the policy, A
the allowed tokens and Z = sum of p over A; the draw is from q = p / Z, whose gradient is

    grad log q(token) = grad log p(token) - grad log Z.

Where A holds one token, q is 1 whatever the policy says: the gradient is zero, and training on grad log p would teach
the policy to say what it was forced to. Such positions are *forced*: they are recorded as such and no term is made of
them. Elsewhere grad log p is used and grad log Z left out, as it is for tokens that top-p or top-k cut off: what is
trained is the policy itself, and the weight that it puts on allowed tokens as a whole moves with the advantages.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt


class ConstraintError(Exception):
    """No continuation obeys the constraint any more, or it became too complex; the message says which."""


class TokenConstraint(Protocol):
    """Follows one continuation, token by token. Used by one sampler, on one thread at a time."""

    def allowed(self, vocabulary: int) -> npt.NDArray[np.int32]:
        """The ids that may come next: id i is bit i % 32 of word i // 32. Ids beyond the last word may not.

        An end token is among them only where the continuation may end; where it must end nothing else is.

        Args:
            vocabulary: how many ids the model has. Ids from there on count for nothing, whatever their bits.

        Raises:
            ConstraintError: there is no such id.
        """
        ...

    def advance(self, token_id: int) -> None:
        """Take note of the id that was drawn. An id that was not allowed makes `allowed` fail from then on."""
        ...
