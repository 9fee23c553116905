"""Low-rank adapters beside linear layers while learning, in C++ (adapters.cpp).

torch's products with a side of 8 cost more than their arithmetic, and round what they give to 16 bits. Here what is
added to a layer's outputs takes one pass over its inputs and one over its outputs, and gradients stay in float32.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, byref, c_float, c_int64, c_void_p

import torch
from torch import Tensor

from .compiled import Kernel, usable

_SIZES, _RANKS = 32, 4
"""Numbers of inputs and outputs are multiples of these, and ranks are filled up to such multiples."""


class _Adapter(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("a", "b")),
        *((name, c_int64) for name in ("rank", "inputs", "outputs")),
        ("scale", c_float),
    ]


_ADAPT = Kernel("adapt", POINTER(_Adapter), c_void_p, c_int64, *[c_void_p] * 2)
_ADAPT_BACK = Kernel("adapt_back", POINTER(_Adapter), *[c_void_p] * 3, c_int64, *[c_void_p] * 3)


def can_adapt(x: Tensor, a_RK: Tensor, b_NR: Tensor) -> bool:
    """Return True if an adapter B A beside a layer with input `x` is computed here."""
    fits = a_RK.shape[1] % _SIZES == 0 and b_NR.shape[0] % _SIZES == 0
    wide = all(matrix.dtype == torch.float32 and matrix.is_contiguous() for matrix in (a_RK, b_NR))
    return fits and wide and usable(x.dtype, x.device)


def add_adapted(x_TK: Tensor, a_RK: Tensor, b_NR: Tensor, scale: float, y_TN: Tensor) -> Tensor:
    """Add `scale` B A x to `y_TN` in place; return A x, its columns filled up with zeros."""
    low_TR = x_TK.new_empty(len(x_TK), -(-len(a_RK) // _RANKS) * _RANKS)
    adapter = _Adapter(a_RK.data_ptr(), b_NR.data_ptr(), *a_RK.shape, len(b_NR), scale)
    _ADAPT(byref(adapter), x_TK.data_ptr(), len(x_TK), low_TR.data_ptr(), y_TN.data_ptr())
    return low_TR


def adapted_gradients(
    x_TK: Tensor, a_RK: Tensor, b_NR: Tensor, scale: float, low_TR: Tensor, grad_TN: Tensor, grad_TK: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the gradients of A and B, and add the adapter's part to that of the input in place, where it is given.

    Args:
        low_TR: what `add_adapted` returned.
    """
    (rank, inputs), outputs, filled = a_RK.shape, len(b_NR), low_TR.shape[1]
    grad_a_RK, grad_b_RN = torch.empty(filled, inputs), torch.empty(filled, outputs)
    adapter = _Adapter(a_RK.data_ptr(), b_NR.data_ptr(), rank, inputs, outputs, scale)
    _ADAPT_BACK(
        *(byref(adapter), x_TK.data_ptr(), low_TR.data_ptr(), grad_TN.data_ptr(), len(x_TK)),
        *(None if grad_TK is None else grad_TK.data_ptr(), grad_a_RK.data_ptr(), grad_b_RN.data_ptr()),
    )
    return grad_a_RK[:rank], grad_b_RN[:rank].T
