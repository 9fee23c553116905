"""Select the LLM calls of a rollout that are trained, and say why the others are not.

A call is trained when all of these hold: it was not made while a reward was computed (a judge); it asked for a model
that is being trained; its agent is among those that `trained_agents` or an adapter's `agent_match` select; and, where
the rollout marks agents (`Rollout.mark_agent_as_trainable`), its agent is one of the marked. A condition that nobody
set holds for every call. An agent's name is the one on the call's span, else that of the nearest agent around it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..emitter import find_trainable_agents, is_reward_span
from ..errors import UserError
from ..semconv import AGL_REWARD, LightningSpanAttributes
from ..tokens import CompletionRecord, TokenTree
from ..types import Span
from .base import TraceAdapter, by_attempt
from .hierarchy import Hierarchy
from .records import attempt_records, is_completion


@dataclass(frozen=True)
class Selection:
    """LLM calls of a rollout that are trained."""

    records: Sequence[CompletionRecord]
    """Calls that are trained, in the order of the store."""
    left_out: Mapping[str, int]
    """Number of other calls, by the reason why they are not trained."""

    @property
    def why_empty(self) -> str | None:
        """Reason why no call is trained; None when one is, or when there is no call at all."""
        if self.records or not self.left_out:
            return None
        return f"none of its LLM calls is trained: they are {'; '.join(sorted(self.left_out))}"


@dataclass(frozen=True)
class TrainedCalls:
    """Conditions under which calls are trained, the same for all rollouts.

    Raises:
        UserError: one of `agents` is no regular expression.
    """

    agents: Mapping[str, str] | None = None
    """Regular expressions by the name of the setting that holds each; the agent's name must contain a match of all."""
    models: Collection[str] | None = None
    """Names of the model that is trained; with None every model counts as trained."""

    def __post_init__(self) -> None:
        for setting, pattern in (self.agents or {}).items():
            try:
                re.compile(pattern)
            except re.error as error:
                raise UserError(f"{pattern!r} is no regular expression: {error}", setting=setting) from error

    def select(self, spans: Sequence[Span], marked: Collection[str] = ()) -> Selection:
        """Select the calls among `spans` that are trained.

        Args:
            spans: of one rollout.
            marked: agents that are marked elsewhere than in the spans (in the rollout's metadata).
        """
        names = list(dict.fromkeys([*marked, *find_trainable_agents(spans)]))
        kept: list[CompletionRecord] = []
        left_out: Counter[str] = Counter()
        for group in by_attempt(spans).values():
            tree = Hierarchy(group, repair=True)
            by_id = {span.span_id: span for span in group}
            records = attempt_records(group, tree)
            for record in records:
                judging = tree.is_inside(by_id[record.metadata["span_id"]], computes_reward)
                reason = "made while a reward was computed" if judging else self._why_not(record, names)
                if reason is None:
                    kept.append(record)
                else:
                    left_out[reason] += 1
            unusable = sum(is_completion(span) for span in group) if not records else 0
            if unusable:
                left_out["without the token ids or log-probabilities that training needs"] += unusable
        return Selection(kept, dict(left_out))

    def _why_not(self, record: CompletionRecord, marked: Sequence[str]) -> str | None:
        if self.models is not None and record.model not in self.models:
            return f"to model {record.model!r}, which is not trained"
        agent = record.metadata["agent_name"]
        mismatch = agent_mismatch(agent, self.agents or {})
        if mismatch is None and marked and agent not in marked:
            return f"{_of_agent(agent)}, which is not marked as trainable (marked: {', '.join(marked)})"
        return mismatch


def agent_mismatch(agent: str | None, patterns: Mapping[str, str]) -> str | None:
    """Return why an agent's calls are not selected by regular expressions, or None when all of them match.

    Args:
        agent: the agent's name; None where it is not known.
        patterns: regular expressions by the name of the setting that holds each.
    """
    for setting, pattern in patterns.items():
        if agent is None or re.search(pattern, agent) is None:
            return f"{_of_agent(agent)}, which {setting}={pattern!r} does not match"
    return None


def _of_agent(agent: str | None) -> str:
    return "without an agent's name (`with agent(…):` gives calls one)" if agent is None else f"of agent {agent!r}"


def computes_reward(span: Span) -> bool:
    """Return True if LLM calls inside the span belong to a reward."""
    operation = span.attributes.get(LightningSpanAttributes.OPERATION_NAME.value)
    return operation == AGL_REWARD or is_reward_span(span)


class TraceToTokenTree(TraceAdapter[TokenTree]):
    """Adapter that builds one token tree; what all attempts have in common is held once.

    Each attempt is a trajectory, numbered in the order of first sight.

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
