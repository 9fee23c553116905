"""The critic: what return is to be expected from a state on, read off the policy's own last hidden states.

A state is all that stands before a token, so the value of the state in which a token was sampled is read at the
position that predicts it; where rollouts share tokens they share states, and values.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

_EPSILON = 1e-6


class ValueHead(nn.Module):
    """v = w · h / (rms(h) sqrt(M)) + b, for hidden states h of M numbers; in float32, zero at first.

    Hidden states are brought to one size, so that one learning rate fits any model.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(hidden_size))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, hidden_TM: Tensor) -> Tensor:
        """Values [T]."""
        x_TM = hidden_TM.float()
        inverse_rms_T = torch.rsqrt(x_TM.square().mean(-1) + _EPSILON)
        return (x_TM @ self.weight) * inverse_rms_T / math.sqrt(x_TM.shape[-1]) + self.bias
