"""Sampling with an adapter that is added to the weights it changes, so that it costs no extra multiplication.

The original weights are put aside and put back untouched: nothing is ever subtracted, so nothing drifts. In float32
only: in 16 bits the sum would be rounded, and the sampler's log-probabilities would no longer be the learner's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class MergedAdapter:
    """At most one adapter at a time stands merged into the weights of `base`."""

    def __init__(self, base: nn.Module) -> None:
        self._base = base
        self._aside: list[tuple[Any, nn.Parameter]] = []
        self._merged: tuple[str, int] | None = None

    def merge(self, adapter: str, version: int) -> None:
        """Let the layers compute with `adapter`'s weights of `version` added; costs a copy of the changed weights."""
        if self._merged == (adapter, version):
            return
        self.restore()
        layers = self._layers()
        with torch.no_grad():
            for layer in layers:
                weight = layer.base_layer.weight
                self._aside.append((layer, weight))
                merged = layer.get_delta_weight(adapter).add_(weight)
                layer.base_layer.weight = nn.Parameter(merged, requires_grad=False)
                layer.merged_adapters.append(adapter)
        self._merged = (adapter, version)

    def restore(self) -> None:
        """Put the original weights back."""
        for layer, weight in self._aside:
            layer.base_layer.weight = weight
            layer.merged_adapters.clear()
        self._aside.clear()
        self._merged = None

    def possible(self) -> bool:
        """Whether every adapted layer is a plain float32 linear layer."""
        layers = self._layers()
        return bool(layers) and all(
            type(layer.base_layer) is nn.Linear and layer.base_layer.weight.dtype == torch.float32 for layer in layers
        )

    def _layers(self) -> list[Any]:
        from peft.tuners.tuners_utils import BaseTunerLayer

        return [module for module in self._base.modules() if isinstance(module, BaseTunerLayer)]
