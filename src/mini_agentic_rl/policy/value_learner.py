"""A learner with a critic: the value head of one adapter, its own optimizer, and the values it gives to packed trees.

The critic reads the return to expect from a state off the policy's own last hidden states. A state is all that stands
before a token, so the value of the state in which a token was sampled is read at the position that predicts it; where
rollouts share tokens they share states, and values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..files import reading
from ..tokens import PackedTrees
from .learner import Learner
from .load import refuse_non_finite
from .model import DEFAULT_ADAPTER, PolicyModel
from .rank_group import RankGroup
from .settings import LearnerSettings, ValueSettings
from .state_files import write_state
from .tree_pass import ChunkTerms

_EPSILON = 1e-6


class ValueHead(nn.Module):
    """v = w · h / (rms(h) sqrt(M)) + b, for hidden states h of M numbers; in float32, zero at first.

    Hidden states are brought to one size, so that one learning rate fits any model.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        # Zero, so that the first values are 0 and the first advantages plain returns.
        self.weight = nn.Parameter(torch.zeros(hidden_size))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, hidden_TM: Tensor) -> Tensor:
        """Return values [T]."""
        x_TM = hidden_TM.float()
        inverse_rms_T = torch.rsqrt(x_TM.square().mean(-1) + _EPSILON)
        return (x_TM @ self.weight) * inverse_rms_T / math.sqrt(x_TM.shape[-1]) + self.bias


class ValueLearner(Learner):
    """A learner with a critic: losses find `values_S` among their inputs, and `optim_step` steps both."""

    def __init__(
        self,
        model: PolicyModel,
        settings: LearnerSettings,
        adapter: str = DEFAULT_ADAPTER,
        value: ValueSettings | None = None,
        group: RankGroup | None = None,
    ) -> None:
        super().__init__(model, settings, adapter, group)
        self.value_settings = value or ValueSettings()
        self.head = ValueHead(model.base.config.get_text_config().hidden_size).to(model.device)
        self.head_steps = 0
        """Number of optimizer steps that the head has taken."""
        self._head_optimizer = torch.optim.AdamW(
            self.head.parameters(), lr=self.value_settings.learning_rate, betas=settings.betas, weight_decay=0.0
        )

    def values(self, packed: PackedTrees) -> Tensor:
        """Return values [S] of the states that the terms were sampled in."""
        return self._each_term(packed, self._values)

    def optim_step(self) -> dict[str, float]:
        """Step the adapter and the head; where the weights do not change, the head does not either."""
        metrics = super().optim_step()
        if metrics["skipped"]:
            self._head_optimizer.zero_grad(set_to_none=True)
            return metrics
        return metrics | self._step_head()

    def value_step(self) -> dict[str, float]:
        """Step the head alone, and forget the gradients of all else; no version is counted."""
        for parameter in self.parameters:
            parameter.grad = None
        return self._step_head()

    def save_head(self, path: Path) -> None:
        """Write the head, and its optimizer's state."""
        state = {"head": self.head.state_dict(), "optimizer": self._head_optimizer.state_dict()}
        write_state(path, {**state, "steps": self.head_steps})

    def load_head(self, path: Path) -> None:
        """Read back what `save_head` wrote.

        Raises:
            UserError: the file is damaged.
        """
        with reading(path):
            state: dict[str, Any] = torch.load(path, map_location=self._model.device, weights_only=True)
            refuse_non_finite(state["head"], path)
            self.take_head(state)

    def take_head(self, state: Mapping[str, Any]) -> None:
        """Go on from the state that `save_head` wrote, with its tensors on the model's device."""
        self.head.load_state_dict(state["head"])
        self._head_optimizer.load_state_dict(dict(state["optimizer"]))
        self.head_steps = int(state["steps"])

    def _values(self, chunk: ChunkTerms) -> Tensor:
        hidden_TM = chunk.hidden_TM if self.value_settings.trains_adapter else chunk.hidden_TM.detach()
        values_T: Tensor = self.head(hidden_TM)
        return values_T[chunk.at_N]

    def _step_head(self) -> dict[str, float]:
        norm = self._clip(list(self.head.parameters()), self.value_settings.max_grad_norm)
        if math.isfinite(norm):
            self._head_optimizer.step()
        self._head_optimizer.zero_grad(set_to_none=True)
        self.head_steps += 1
        return {"value/grad_norm": norm}
