"""From spans to a token tree: what all attempts have in common is held once."""

from __future__ import annotations

from collections.abc import Sequence

from ..tokens import TokenTree
from ..types import Span
from .base import TraceAdapter, by_attempt
from .selection import TrainedCalls


class TraceToTokenTree(TraceAdapter[TokenTree]):
    """One tree of every LLM call among the spans; each attempt is a trajectory, numbered in the order of first sight.

    Give it the spans of one rollout for its tree, or those of a group for the tree that the group is trained as.

    Args:
        trained: which calls go into the tree; by default all but those made while a reward was computed.
    """

    def __init__(self, trained: TrainedCalls | None = None) -> None:
        self.trained = trained or TrainedCalls()

    def adapt(self, source: Sequence[Span], /) -> TokenTree:
        tree = TokenTree()
        for number, group in enumerate(by_attempt(source).values()):
            for record in self.trained.select(group).records:
                tree.insert(record, number)
        return tree
