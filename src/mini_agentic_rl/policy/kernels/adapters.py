"""Low-rank adapters beside linear layers while learning, in C++ (adapters.cpp).

torch's products with a side of 8 cost more than their arithmetic, and round what they give to 16 bits. Here what is
added to a layer's outputs takes one pass over its inputs and one over its outputs, and gradients stay in float32.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, byref, c_bool, c_float, c_int64, c_void_p

import torch
from torch import Tensor

from .compiled import Kernel, usable

_SIZES, _RANKS = 32, 4
"""Numbers of inputs and outputs are multiples of these, and ranks are filled up to such multiples."""


class _Matrix(Structure):
    _fields_ = [("data", c_void_p), ("rank", c_int64), ("size", c_int64), ("transposed", c_bool)]


_ADAPT = Kernel("adapt", c_void_p, c_int64, *[POINTER(_Matrix)] * 2, c_float, *[c_void_p] * 2)
_OUTER = Kernel("outer_product", c_void_p, c_int64, c_void_p, *[c_int64] * 2, c_float, c_void_p)


def can_adapt(x: Tensor, a_RK: Tensor, b_NR: Tensor) -> bool:
    """Return True if an adapter B A beside a layer with input `x` is computed here."""
    fits = a_RK.shape[1] % _SIZES == 0 and b_NR.shape[0] % _SIZES == 0
    wide = all(matrix.dtype == torch.float32 and matrix.is_contiguous() for matrix in (a_RK, b_NR))
    return fits and wide and usable(x.dtype, x.device)


def add_adapted(x_TK: Tensor, a_RK: Tensor, b_NR: Tensor, scale: float, y_TN: Tensor) -> Tensor:
    """Add `scale` B A x to `y_TN` in place; return A x, its columns filled up with zeros."""
    down, up = _Matrix(a_RK.data_ptr(), *a_RK.shape, False), _Matrix(b_NR.data_ptr(), *reversed(b_NR.shape), True)
    return _adapt(x_TK, down, up, scale, y_TN)


def add_adapted_back(grad_TN: Tensor, a_RK: Tensor, b_NR: Tensor, scale: float, grad_TK: Tensor | None) -> Tensor:
    """Add the adapter's part to the gradient of the input, in place, where that is asked for; return the gradient of
    A x over `scale`."""
    down, up = _Matrix(b_NR.data_ptr(), *reversed(b_NR.shape), True), _Matrix(a_RK.data_ptr(), *a_RK.shape, False)
    return _adapt(grad_TN, down, up, scale, grad_TK)


def outer_product(low_TR: Tensor, x_TK: Tensor, scale: float) -> Tensor:
    """Return `scale` low' x [R, K] in float32."""
    (tokens, rank), size = low_TR.shape, x_TK.shape[1]
    out_RK = torch.empty(rank, size)
    _OUTER(low_TR.data_ptr(), rank, x_TK.data_ptr(), tokens, size, scale, out_RK.data_ptr())
    return out_RK


def _adapt(x: Tensor, down: _Matrix, up: _Matrix, scale: float, y: Tensor | None) -> Tensor:
    low_TR = x.new_empty(len(x), -(-down.rank // _RANKS) * _RANKS)
    y_address = None if y is None else y.data_ptr()
    _ADAPT(x.data_ptr(), len(x), byref(down), byref(up), scale, low_TR.data_ptr(), y_address)
    return low_TR
