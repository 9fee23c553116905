"""RMS norm, SiLU times up, and rotary embedding in C++ (layers.cpp): the parts of a layer between its products.

Each is one pass over its numbers where torch makes up to seven, and keeps its input alone for the backward pass.
"""

from __future__ import annotations

from ctypes import c_bool, c_float, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from .compiled import Kernel, dense

_NORM = Kernel("rms_norm", *[c_void_p] * 2, *[c_int64] * 2, c_float, *[c_void_p] * 2)
_NORM_BACKWARD = Kernel("rms_norm_backward", *[c_void_p] * 4, *[c_int64] * 2, c_void_p)
_SILU = Kernel("silu_product", *[c_void_p] * 2, *[c_int64] * 4, c_void_p)
_SILU_BACKWARD = Kernel(
    "silu_product_backward", *[c_void_p] * 2, *[c_int64] * 2, c_void_p, *[c_int64] * 2, *[c_void_p] * 2
)
_ROTATE = Kernel("rotate", c_void_p, *[c_int64] * 2, *[c_void_p] * 2, *[c_int64] * 3, c_bool, c_void_p)


def rms_norm(x: Tensor, weight_M: Tensor, epsilon: float) -> Tensor:
    """Return `x` [..., M] over its root mean square, times a weight that is not trained (Zhang and Sennrich 2019)."""
    if not torch.is_grad_enabled():
        return _norm(x.reshape(-1, x.shape[-1]).contiguous(), weight_M, epsilon)[0].view(x.shape)
    y: Tensor = _RMSNorm.apply(x, weight_M, epsilon)  # type: ignore[no-untyped-call]  # torch
    return y


def silu_product(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) * up, both [..., I] (SwiGLU; Shazeer 2020)."""
    if not torch.is_grad_enabled():
        return _silu(_rows(gate), _rows(up)).view(gate.shape)
    y: Tensor = _SiLUProduct.apply(gate, up)  # type: ignore[no-untyped-call]  # torch
    return y


def rotated(x_HTD: Tensor, cosines_TD: Tensor, sines_TD: Tensor) -> Tensor:
    """Return queries or keys [H, T, D], with pairs of their numbers rotated by each token's angles (RoPE; Su et al.
    2021)."""
    if not torch.is_grad_enabled():
        return _rotate(x_HTD, cosines_TD, sines_TD, back=False)
    y: Tensor = _Rotation.apply(x_HTD, cosines_TD, sines_TD)  # type: ignore[no-untyped-call]  # torch
    return y


def _norm(x_TM: Tensor, weight_M: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    y_TM, scales_T = torch.empty_like(x_TM), torch.empty(x_TM.shape[0])
    _NORM(x_TM.data_ptr(), weight_M.data_ptr(), *x_TM.shape, epsilon, y_TM.data_ptr(), scales_T.data_ptr())
    return y_TM, scales_T


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_M: Tensor, epsilon: float) -> Tensor:
        x_TM = x.reshape(-1, x.shape[-1]).contiguous()
        y_TM, scales_T = _norm(x_TM, weight_M, epsilon)
        ctx.save_for_backward(x_TM, weight_M, scales_T)
        return y_TM.view(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        x_TM, weight_M, scales_T = ctx.saved_tensors
        grad_TM, of_x_TM = grad.reshape(x_TM.shape).contiguous(), torch.empty_like(x_TM)
        addresses = (tensor.data_ptr() for tensor in (x_TM, weight_M, scales_T, grad_TM))
        _NORM_BACKWARD(*addresses, *x_TM.shape, of_x_TM.data_ptr())
        return of_x_TM.view(grad.shape), None, None


def _silu(gate_TI: Tensor, up_TI: Tensor) -> Tensor:
    out_TI = gate_TI.new_empty(gate_TI.shape)
    rows = (gate_TI.stride(0), up_TI.stride(0))
    _SILU(gate_TI.data_ptr(), up_TI.data_ptr(), *rows, *gate_TI.shape, out_TI.data_ptr())
    return out_TI


class _SiLUProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        gate_TI, up_TI = _rows(gate), _rows(up)
        ctx.save_for_backward(gate_TI, up_TI)
        return _silu(gate_TI, up_TI).view(gate.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate_TI, up_TI = ctx.saved_tensors
        grad_TI = grad.reshape(gate_TI.shape).contiguous()
        of_gate_TI, of_up_TI = torch.empty_like(grad_TI), torch.empty_like(grad_TI)
        _SILU_BACKWARD(
            *(gate_TI.data_ptr(), up_TI.data_ptr(), gate_TI.stride(0), up_TI.stride(0)),
            *(grad_TI.data_ptr(), *gate_TI.shape, of_gate_TI.data_ptr(), of_up_TI.data_ptr()),
        )
        return of_gate_TI.view(grad.shape), of_up_TI.view(grad.shape)


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_HTD: Tensor, cosines_TD: Tensor, sines_TD: Tensor) -> Tensor:
        ctx.save_for_backward(cosines_TD, sines_TD)
        return _rotate(x_HTD, cosines_TD, sines_TD, back=False)

    @staticmethod
    def backward(ctx: Any, grad_HTD: Tensor) -> tuple[Tensor, None, None]:
        return _rotate(grad_HTD, *ctx.saved_tensors, back=True), None, None


def _rotate(x_HTD: Tensor, cosines_TD: Tensor, sines_TD: Tensor, *, back: bool) -> Tensor:
    x_HTD = dense(x_HTD)
    heads, tokens, size = x_HTD.shape
    out_THD = x_HTD.new_empty(tokens, heads, size)
    _ROTATE(
        *(x_HTD.data_ptr(), x_HTD.stride(0), x_HTD.stride(1), cosines_TD.data_ptr(), sines_TD.data_ptr()),
        *(tokens, heads, size, back, out_THD.data_ptr()),
    )
    return out_THD.transpose(0, 1)


def _rows(x: Tensor) -> Tensor:
    """Return [T, I] whose rows may lie apart, but whose numbers lie side by side."""
    x_TI = x.reshape(-1, x.shape[-1])
    return x_TI if x_TI.stride(1) == 1 else x_TI.contiguous()
