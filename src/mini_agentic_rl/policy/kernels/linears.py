"""Products of a few rows with linear layers and their adapters in C++ (linears.h), from the weights as they lie.

oneDNN is as fast with hundreds of rows, but with the few of a decoding step it reaches half of what the processor
multiplies, and only from a copy of all weights in a layout of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .compiled import Kernel, usable

_INPUTS, _OUTPUTS = 32, 4
"""Numbers of inputs and outputs are multiples of these."""


class LinearArguments(ctypes.Structure):
    """A linear layer and its adapter as the C++ functions take them."""

    _fields_ = [
        ("weight", ctypes.c_void_p),
        ("outputs", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("bias", "a", "b")),
        ("pairs", ctypes.c_int64),
        ("out", ctypes.c_void_p),
    ]


_FEW_ROWS = Kernel("few_rows", ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.POINTER(LinearArguments), ctypes.c_int64)


@dataclass(frozen=True)
class AdaptedLinear:
    """A linear layer, y = W x + b, with what an adapter adds to it, B A x."""

    weight_NK: Tensor
    bias_N: Tensor | None = None
    a_RK: Tensor | None = None
    b_NR: Tensor | None = None
    """B, with its scale; None where there is no adapter."""


class FewRows:
    """Layers that are given the same input. It reads the weights where they are, and keeps the adapters' matrices."""

    def __init__(self, layers: Sequence[AdaptedLinear]) -> None:
        self.sizes = tuple(len(layer.weight_NK) for layer in layers)
        """Numbers of outputs."""
        self.inputs = layers[0].weight_NK.shape[1]
        self._layers = (LinearArguments * len(layers))()
        # Addresses keep no tensor alive.
        self._kept: list[Tensor] = []
        for place, layer in zip(self._layers, layers, strict=True):
            place.weight, place.outputs = self._address(layer.weight_NK), len(layer.weight_NK)
            if layer.bias_N is not None:
                place.bias = self._address(layer.bias_N.to(torch.bfloat16))
            if layer.a_RK is not None and layer.b_NR is not None:
                rank = len(layer.a_RK)
                missing = -rank % _OUTPUTS
                place.a = self._address(_padded(layer.a_RK, rows=missing))
                b_NR = _padded(layer.b_NR, columns=missing)
                b_pairs = b_NR.view(-1, _OUTPUTS, (rank + missing) // 2, 2).transpose(1, 2)
                place.b, place.pairs = self._address(b_pairs), b_pairs.shape[1]

    @staticmethod
    def takes(weight_NK: Tensor) -> bool:
        """Return True if a layer with this weight can be computed here."""
        outputs, inputs = weight_NK.shape
        fits = outputs % _OUTPUTS == 0 and inputs % _INPUTS == 0 and weight_NK.is_contiguous()
        return fits and usable(weight_NK.dtype, weight_NK.device)

    def __call__(self, x_TK: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs [T, N] of each layer for an input [T, K] whose rows may lie apart."""
        rows = x_TK.shape[0]
        outputs = tuple(x_TK.new_empty(rows, size) for size in self.sizes)
        for place, y_TN in zip(self._layers, outputs, strict=True):
            place.out = y_TN.data_ptr()
        _FEW_ROWS(x_TK.data_ptr(), x_TK.stride(0), rows, self.inputs, self._layers, len(self.sizes))
        return outputs

    def arguments(self) -> ctypes.Array[LinearArguments]:
        """Return the layers as the C++ functions take them, in memory of their own; what they name must outlive it."""
        return type(self._layers)(*self._layers)

    def _address(self, tensor: Tensor) -> int:
        self._kept.append(tensor.detach().contiguous())
        return self._kept[-1].data_ptr()


def _padded(tensor: Tensor, *, rows: int = 0, columns: int = 0) -> Tensor:
    return torch.nn.functional.pad(tensor.detach(), (0, columns, 0, rows)).to(torch.bfloat16)
