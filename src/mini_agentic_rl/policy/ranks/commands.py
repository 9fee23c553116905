"""Commands of rank 0, as another rank does them: on its torch thread, with its own weights, on its share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...tokens import PackedTrees
from ..learner import Learner, ValueLearner
from ..loss import Loss, TermStreams
from ..policy import Policy
from ..rank_group import RankGroup
from ..settings import LearnerSettings, ValueSettings
from ..tree_pass import Likeliest, Scorer


class Commands:
    """All that a rank can be told. Learners have the numbers that rank 0 gave them."""

    def __init__(self, policy: Policy, group: RankGroup) -> None:
        self._policy = policy
        self._model = policy.model
        self._group = group
        self._learners: dict[int, Learner] = {}

    def do(self, command: str, arguments: tuple[Any, ...]) -> Any:
        """Do one thing, and return what rank 0 is answered."""
        return getattr(self, command)(*arguments)

    def make_learner(self, number: int, settings: LearnerSettings, adapter: str, value: ValueSettings | None) -> None:
        if value is None:
            self._learners[number] = Learner(self._model, settings, adapter, self._group)
        else:
            self._learners[number] = ValueLearner(self._model, settings, adapter, value, self._group)

    def forget(self, number: int) -> None:
        self._learners.pop(number, None)

    def forward_backward(
        self, number: int, packed: PackedTrees, loss: Loss, streams: TermStreams, gradient: bool, entropy_gradient: bool
    ) -> dict[str, float]:
        return self._learners[number].forward_backward(
            packed, loss, streams, gradient=gradient, entropy_gradient=entropy_gradient
        )

    def take_part(self) -> None:
        if self._model.shards is not None:
            self._model.shards.end()

    def optim_step(self, number: int) -> None:
        self._learners[number].optim_step()

    def keep_weights(self, number: int) -> None:
        self._learners[number].keep_weights()

    def shorten_step(self, number: int, factor: float) -> None:
        self._learners[number].shorten_step(factor)

    def keep_reference(self, number: int) -> None:
        self._learners[number].keep_reference()

    def take_reference(self, number: int) -> None:
        self._learners[number].take_reference()

    def forget_weights(self, number: int) -> None:
        self._learners[number].forget_weights()

    def value_step(self, number: int) -> None:
        self._critic(number).value_step()

    def values(self, number: int, packed: PackedTrees) -> Tensor:
        return self._critic(number).values(packed).cpu()

    def logprobs(self, adapter: str | None, max_tokens: int, head_rows: int, packed: PackedTrees) -> Tensor:
        return Scorer(self._model, adapter, max_tokens=max_tokens, head_rows=head_rows).logprobs(packed).cpu()

    def likeliest(
        self, adapter: str | None, max_tokens: int, head_rows: int, packed: PackedTrees, count: int
    ) -> Likeliest:
        return Scorer(self._model, adapter, max_tokens=max_tokens, head_rows=head_rows).likeliest(packed, count)

    def take_state(self, number: int, state: Mapping[str, Any]) -> None:
        self._learners[number].take_state(on_device(state, self._model.device))

    def take_head(self, number: int, state: Mapping[str, Any]) -> None:
        self._critic(number).take_head(on_device(state, self._model.device))

    def take_weights(self, adapter: str) -> None:
        self._group.copy_from_first(self._model.trainable(adapter))
        self._policy.weights_changed(adapter)

    def digest(self, adapter: str) -> str:
        return self._policy.digest(adapter)

    def _critic(self, number: int) -> ValueLearner:
        learner = self._learners[number]
        if not isinstance(learner, ValueLearner):
            raise TypeError(f"learner {number} has no critic")
        return learner


def on_device(state: Any, device: torch.device) -> Any:
    """Return a state of mappings, lists and tensors with its tensors on a device."""
    if isinstance(state, Tensor):
        return state.to(device)
    if isinstance(state, Mapping):
        return {name: on_device(value, device) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(on_device(value, device) for value in state)
    return state
