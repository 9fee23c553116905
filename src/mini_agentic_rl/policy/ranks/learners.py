"""Rank 0's learners and scorers: they divide their trees, have the other ranks compute their shares, and add up.

A loss adds up over terms, and each term is in one share, so that the sums of the metrics and the gradients are those of
one rank that computes all. An optimizer step is taken by all ranks at once, over gradients that are added up in it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ...tokens import PackedTrees, Share, divide
from ..learner import Learner, ValueLearner
from ..loss import Loss, SeenTerms, TermStreams
from ..model import DEFAULT_ADAPTER, PolicyModel
from ..settings import LearnerSettings, ValueSettings
from ..tree_pass import Likeliest, Scorer
from .commands import on_device
from .team import Team


class LeadingScorer(Scorer):
    """A scorer whose numbers are computed by all ranks, each for the terms of its share."""

    def __init__(self, team: Team, model: PolicyModel, adapter: str | None, max_tokens: int, head_rows: int) -> None:
        super().__init__(model, adapter, max_tokens=max_tokens, head_rows=head_rows)
        self._team = team
        self._named = (adapter, max_tokens, head_rows)

    def logprobs(self, packed: PackedTrees) -> Tensor:
        found_S = torch.empty(packed.term_count, device=self._model.device)
        own = super().logprobs
        for share, one_N in in_shares(self._team, packed, "logprobs", self._named, (), lambda part: own(part)):
            found_S[torch.from_numpy(share.terms_N)] = one_N.to(found_S)
        return found_S

    def likeliest(self, packed: PackedTrees, count: int) -> Likeliest:
        own = super().likeliest
        parts = in_shares(self._team, packed, "likeliest", self._named, (count,), lambda part: own(part, count))
        width = parts[0][1].logprobs_SK.shape[1]
        logprobs_SK = torch.empty(packed.term_count, width)
        whole = parts[0][1].tokens_SK is None
        tokens_SK = None if whole else torch.empty(packed.term_count, width, dtype=torch.long)
        for share, found in parts:
            logprobs_SK[torch.from_numpy(share.terms_N)] = found.logprobs_SK
            if tokens_SK is not None:
                tokens_SK[torch.from_numpy(share.terms_N)] = found.tokens_SK
        return Likeliest(tokens_SK, logprobs_SK)


class LeadingLearner(Learner):
    """A learner that every rank has, and that rank 0 leads."""

    def __init__(
        self, team: Team, model: PolicyModel, settings: LearnerSettings, adapter: str = DEFAULT_ADAPTER, **more: Any
    ) -> None:
        super().__init__(model, settings, adapter, group=team.group, **more)
        self._team = team
        self._number = team.new_number()
        value: ValueSettings | None = more.get("value")
        with team.ask("make_learner", [(self._number, settings, adapter, value)] * team.others):
            pass
        team.copy_weights(model, adapter)  # from here on they change alike everywhere
        weakref.finalize(self, team.forget_later, self._number)

    def forward_backward(
        self,
        packed: PackedTrees,
        loss_fn: Loss,
        streams: TermStreams | None = None,
        *,
        gradient: bool = True,
        entropy_gradient: bool = False,
        seen: SeenTerms | None = None,
    ) -> dict[str, float]:
        given = streams or TermStreams(torch.ones(packed.term_count))
        first, *others = divide(packed, self._team.others + 1)
        arguments = [
            None
            if share is None
            else (self._number, share.packed, loss_fn, given.select(share.terms_N), gradient, entropy_gradient)
            for share in others
        ]
        sums: dict[str, float] = {}
        with self._team.ask("forward_backward", arguments) as answers:
            if first is not None:
                own, part = given.select(first.terms_N), SeenTerms(first.packed.term_count)
                sums = super().forward_backward(
                    first.packed, loss_fn, own, gradient=gradient, entropy_gradient=entropy_gradient, seen=part
                )
                if seen is not None:
                    seen.take_part(first.terms_N, part)
            elif self._team.shards is not None:
                self._team.shards.end()
        for found in answers.values:
            for name, value in (found or {}).items():
                sums[name] = sums.get(name, 0.0) + value
        return sums

    def optim_step(self) -> dict[str, float]:
        with self._team.ask("optim_step", [(self._number,)] * self._team.others):
            return super().optim_step()

    def keep_weights(self) -> None:
        with self._team.ask("keep_weights", [(self._number,)] * self._team.others):
            super().keep_weights()

    def shorten_step(self, factor: float) -> None:
        with self._team.ask("shorten_step", [(self._number, factor)] * self._team.others):
            super().shorten_step(factor)

    def keep_reference(self) -> None:
        with self._team.ask("keep_reference", [(self._number,)] * self._team.others):
            super().keep_reference()

    def take_reference(self) -> None:
        with self._team.ask("take_reference", [(self._number,)] * self._team.others):
            super().take_reference()

    def forget_weights(self) -> None:
        with self._team.ask("forget_weights", [(self._number,)] * self._team.others):
            super().forget_weights()

    def take_state(self, state: Mapping[str, Any]) -> None:
        sent = on_device(state, torch.device("cpu"))
        with self._team.ask("take_state", [(self._number, sent)] * self._team.others):
            super().take_state(state)

    def scorer(self, adapter: str | None) -> Scorer:
        settings = self.settings
        return LeadingScorer(self._team, self._model, adapter, settings.max_batch_tokens, settings.head_rows)


class LeadingValueLearner(LeadingLearner, ValueLearner):
    """A learner with a critic that every rank has, and that rank 0 leads."""

    def values(self, packed: PackedTrees) -> Tensor:
        found_S = torch.empty(packed.term_count, device=self._model.device)
        own = super().values
        for share, one_N in in_shares(self._team, packed, "values", (self._number,), (), lambda part: own(part)):
            found_S[torch.from_numpy(share.terms_N)] = one_N.to(found_S)
        return found_S

    def value_step(self) -> dict[str, float]:
        with self._team.ask("value_step", [(self._number,)] * self._team.others):
            return super().value_step()

    def take_head(self, state: Mapping[str, Any]) -> None:
        sent = on_device(state, torch.device("cpu"))
        with self._team.ask("take_head", [(self._number, sent)] * self._team.others):
            super().take_head(state)


def in_shares(
    team: Team,
    packed: PackedTrees,
    command: str,
    before: tuple[Any, ...],
    after: tuple[Any, ...],
    own: Callable[[PackedTrees], Any],
) -> list[tuple[Share, Any]]:
    """Return the shares of `packed` with what was computed for each: the first by `own`, the others by other ranks.

    Args:
        command: of the other ranks; its arguments are `before`, the trees of the share, and `after`.
    """
    first, *others = divide(packed, team.others + 1)
    arguments = [None if share is None else (*before, share.packed, *after) for share in others]
    found: list[tuple[Share, Any]] = []
    with team.ask(command, arguments) as answers:
        if first is not None:
            found.append((first, own(first.packed)))
        elif team.shards is not None:
            team.shards.end()
    pairs = zip([share for share in others if share is not None], answers.values, strict=True)
    return [*found, *pairs]
