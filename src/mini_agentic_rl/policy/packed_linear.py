"""Linear layers while the engine samples on a CPU: one product each, in a layout made for few rows.

A decoding step multiplies every weight with a handful of rows. In the layout of training that runs at half the speed
that oneDNN's blocked layout reaches with the same numbers, and an adapter beside it costs a third more. So the engine
samples with blocked copies, the adapter added in; they are let go before the weights may change, and so before learning
needs the memory. In float32 only: in 16 bits the sum would be rounded, and the sampler's log-probabilities would no
longer be the learner's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

_ROWS = 16
"""The number of rows that the layout is chosen for; any number may be multiplied."""


class PackedLinears:
    """The linear layers of `base`, each with the adapters it may have."""

    def __init__(self, base: nn.Module) -> None:
        self._packs: dict[nn.Module, tuple[Tensor, Tensor | None]] = {}
        self._adapter: str | None = None
        self._layers = _outermost_linears(base) if torch.backends.mkldnn.is_available() else []  # type: ignore[no-untyped-call]
        for layer in self._layers:
            layer.forward = partial(self._forward, layer, layer.forward)

    def pack(self, adapter: str | None) -> None:
        """Compute with copies that have `adapter` added in, or none; where all layers are plain float32 ones on the
        CPU, and nowhere otherwise."""
        if self._packs and self._adapter == adapter:
            return
        self.release()
        if not all(_can_be_packed(layer) for layer in self._layers):
            return
        with torch.no_grad():
            for layer in self._layers:
                linear = _linear_of(layer)
                weight = linear.weight
                if linear is not layer and adapter in layer.lora_A:
                    weight = layer.get_delta_weight(adapter).add_(weight)
                self._packs[layer] = (torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _ROWS), linear.bias)
        self._adapter = adapter

    def release(self) -> None:
        """Let the copies go: the weights are about to change, or their memory is needed."""
        self._packs.clear()

    @property
    def used(self) -> bool:
        return bool(self._packs)

    def _forward(self, layer: Any, unpacked: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        pack = self._packs.get(layer)
        if pack is None or torch.is_grad_enabled():
            return unpacked(x, *args, **kwargs)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, *pack, "none", [], "")
        return product


def _outermost_linears(base: nn.Module) -> list[Any]:
    """Plain linear layers, and those with adapters around them, which stand for both."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    with_adapters = [module for module in base.modules() if isinstance(module, BaseTunerLayer)]
    inside = {id(part) for module in with_adapters for part in module.modules()}
    return [*with_adapters, *(m for m in base.modules() if type(m) is nn.Linear and id(m) not in inside)]


def _linear_of(layer: Any) -> Any:
    return layer if type(layer) is nn.Linear else layer.base_layer


def _can_be_packed(layer: Any) -> bool:
    linear = _linear_of(layer)
    if type(linear) is not nn.Linear or (linear is not layer and layer.lora_variant):
        return False
    weight = linear.weight
    return weight.device.type == "cpu" and weight.dtype == torch.float32
