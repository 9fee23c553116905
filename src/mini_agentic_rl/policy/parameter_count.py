"""Count the parameters of a model, and those of them that are trained."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from ..metrics import percent


@dataclass(frozen=True)
class ParameterCount:
    """Numbers of parameters, those of adapters among them."""

    trained: int
    total: int

    def __str__(self) -> str:
        share = percent(self.trained / max(1, self.total), 2)
        return f"training {self.trained:,} of {self.total:,} parameters ({share})"


def count_parameters(model: nn.Module, trained: Iterable[nn.Parameter] | None = None) -> ParameterCount:
    """Return the numbers of a model's parameters.

    Args:
        trained: those that are; None takes all that need a gradient.
    """
    parameters = list(model.parameters())
    learnt = [parameter for parameter in parameters if parameter.requires_grad] if trained is None else trained
    return ParameterCount(sum(map(_size, learnt)), sum(map(_size, parameters)))


def _size(parameter: nn.Parameter) -> int:
    """Return the number of weights; those of 4 bits are kept several to a number."""
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else int(state.shape.numel())
