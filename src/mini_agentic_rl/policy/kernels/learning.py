"""Learning in C++ (layers.cpp, adapters.cpp, trees.cpp, head.cpp): what has a gradient."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_bool, c_float, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .compiled import Heads, Kernel, Strided, dense, usable

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
    _NORM(x_TM.dtype, x_TM.data_ptr(), weight_M.data_ptr(), *x_TM.shape, epsilon, y_TM.data_ptr(), scales_T.data_ptr())
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
        _NORM_BACKWARD(x_TM.dtype, *addresses, *x_TM.shape, of_x_TM.data_ptr())
        return of_x_TM.view(grad.shape), None, None


def _silu(gate_TI: Tensor, up_TI: Tensor) -> Tensor:
    out_TI = gate_TI.new_empty(gate_TI.shape)
    rows = (gate_TI.stride(0), up_TI.stride(0))
    _SILU(gate_TI.dtype, gate_TI.data_ptr(), up_TI.data_ptr(), *rows, *gate_TI.shape, out_TI.data_ptr())
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
            gate_TI.dtype,
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
        x_HTD.dtype,
        *(x_HTD.data_ptr(), x_HTD.stride(0), x_HTD.stride(1), cosines_TD.data_ptr(), sines_TD.data_ptr()),
        *(tokens, heads, size, back, out_THD.data_ptr()),
    )
    return out_THD.transpose(0, 1)


def _rows(x: Tensor) -> Tensor:
    """Return [T, I] with a contiguous last axis."""
    x_TI = x.reshape(-1, x.shape[-1])
    return x_TI if x_TI.stride(1) == 1 else x_TI.contiguous()


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
    # In float32 torch rounds nothing, and is as fast.
    return fits and wide and x.dtype == torch.bfloat16 and usable(x.dtype, x.device)


def add_adapted(x_TK: Tensor, a_RK: Tensor, b_NR: Tensor, scale: float, y_TN: Tensor) -> Tensor:
    """Add `scale` B A x to `y_TN` in place; return A x, its columns filled up with zeros.

    torch's products with a side of 8 cost more than their arithmetic, and round their results to 16 bits. This takes
    one pass over the layer's inputs and one over its outputs, and gradients stay in float32.
    """
    low_TR = x_TK.new_empty(len(x_TK), -(-len(a_RK) // _RANKS) * _RANKS)
    adapter = _Adapter(a_RK.data_ptr(), b_NR.data_ptr(), *a_RK.shape, len(b_NR), scale)
    _ADAPT(x_TK.dtype, byref(adapter), x_TK.data_ptr(), len(x_TK), low_TR.data_ptr(), y_TN.data_ptr())
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
        x_TK.dtype,
        *(byref(adapter), x_TK.data_ptr(), low_TR.data_ptr(), grad_TN.data_ptr(), len(x_TK)),
        *(None if grad_TK is None else grad_TK.data_ptr(), grad_a_RK.data_ptr(), grad_b_RN.data_ptr()),
    )
    return grad_a_RK[:rank], grad_b_RN[:rank].T


class _Trees(ctypes.Structure):
    _fields_ = [
        *((name, Strided) for name in ("q", "k", "v", "ck", "cv")),
        ("blocks", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("count", "tokens", "context")),
        ("end", ctypes.c_void_p),
        ("scale", ctypes.c_float),
        ("heads", Heads),
    ]


_FORWARD = Kernel("tree_forward", ctypes.POINTER(_Trees), ctypes.c_void_p)
_BACKWARD = Kernel(
    "tree_backward",
    *(ctypes.POINTER(_Trees), ctypes.POINTER(Strided), ctypes.c_void_p, ctypes.c_int64),
    *[ctypes.c_void_p] * 5,
)


class TreeReads(NamedTuple):
    """The tokens that each token of a chunk sees; the same for all layers."""

    blocks: np.ndarray
    """int64 [blocks, 5]: first and last row, first and last of the chunk's own tokens that they attend to, and the
    number of leading tokens of the context that they attend to."""
    end_T: np.ndarray
    """int32: for each token of the chunk the first one behind it that does not see it."""


def tree_attention(
    q_HTD: Tensor, k_HTD: Tensor, v_HTD: Tensor, context: tuple[Tensor, Tensor], reads: TreeReads, scale: float
) -> Tensor:
    """Return [T, H, D]. `context` is keys and values [H, C, D]; they may have fewer heads than the queries."""
    out: Tensor = _TreeAttention.apply(q_HTD, k_HTD, v_HTD, *context, reads, scale)  # type: ignore[no-untyped-call]  # torch
    return out


class _TreeAttention(torch.autograd.Function):
    """Keeps queries, keys and values for the backward pass, and computes the weights again."""

    @staticmethod
    def forward(
        ctx: Any,
        q_HTD: Tensor,
        k_HTD: Tensor,
        v_HTD: Tensor,
        ck_HCD: Tensor,
        cv_HCD: Tensor,
        reads: TreeReads,
        scale: float,
    ) -> Tensor:
        inputs = tuple(dense(tensor) for tensor in (q_HTD, k_HTD, v_HTD, ck_HCD, cv_HCD))
        heads, tokens, size = q_HTD.shape
        out_THD = q_HTD.new_empty(tokens, heads, size)
        _FORWARD(q_HTD.dtype, _arguments(inputs, reads, scale), out_THD.data_ptr())
        ctx.save_for_backward(*inputs)
        ctx.reads, ctx.scale = reads, scale
        return out_THD

    @staticmethod
    def backward(ctx: Any, grad_THD: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, None, None]:
        inputs = ctx.saved_tensors
        heads, tokens, size = inputs[0].shape
        kv_heads, context = inputs[3].shape[:2]
        threads = torch.get_num_threads()
        # Each thread gathers the gradients of keys and values for itself.
        work = torch.zeros(2 * threads * kv_heads * size * (context + tokens))
        grad_HTD = dense(grad_THD.transpose(0, 1))
        of_q_THD = grad_HTD.new_empty(tokens, heads, size)
        of_k, of_v, of_ck, of_cv = (grad_HTD.new_empty(kv_heads, n, size) for n in (tokens, tokens, context, context))
        _BACKWARD(
            grad_HTD.dtype,
            *(_arguments(inputs, ctx.reads, ctx.scale), Strided.of(grad_HTD), work.data_ptr(), threads),
            *(tensor.data_ptr() for tensor in (of_q_THD, of_k, of_v, of_ck, of_cv)),
        )
        return of_q_THD.transpose(0, 1), of_k, of_v, of_ck, of_cv, None, None


def _arguments(inputs: tuple[Tensor, ...], reads: TreeReads, scale: float) -> _Trees:
    """Return what both C++ functions take; the tensors must outlive the call."""
    (heads, tokens, size), (kv_heads, context, _) = inputs[0].shape, inputs[3].shape
    return _Trees(
        *(Strided.of(tensor) for tensor in inputs),
        blocks=reads.blocks.ctypes.data,
        count=len(reads.blocks),
        tokens=tokens,
        context=context,
        end=reads.end_T.ctypes.data,
        scale=scale,
        heads=Heads(heads, kv_heads, size),
    )


class _Tile(ctypes.Structure):
    _fields_ = [
        ("logits", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("row", "rows", "columns", "first_token")),
        *((name, ctypes.c_void_p) for name in ("scales", "tops", "top_tokens", "rests", "rest_logits")),
        *((name, ctypes.c_void_p) for name in ("shrinks", "joins", "joining")),
    ]


_ADD_TILE = Kernel("add_tile_of_head", ctypes.POINTER(_Tile))


@dataclass(frozen=True)
class HeadSums:
    """Sums of the softmax of R rows of logits over some blocks of the vocabulary, in two passes over the logits.

    torch makes a float32 copy of the logits, and reads or writes tensors of their size some ten times.
    """

    top_R: Tensor
    top_token_R: Tensor
    rest_R: Tensor
    rest_logits_R: Tensor

    @classmethod
    def of_none(cls, rows: int) -> HeadSums:
        """Return the sums before any block."""
        top_R = torch.full((rows,), float("-inf"))
        return cls(top_R, torch.zeros(rows, dtype=torch.long), torch.zeros(rows), torch.zeros(rows))

    def add(self, logits_RV: Tensor, scale_R: Tensor, first_token: int) -> tuple[Tensor, Tensor, Tensor]:
        """Take in the next block of logits, and replace them by their exponentials, the top token's by 0.

        Returns:
            For each row by how much what was summed before shrinks, the share of a token that joins it, and that token.
        """
        rows, columns = logits_RV.shape
        shrink_R, join_R = torch.empty(rows), torch.empty(rows)
        joining_R = torch.empty(rows, dtype=torch.long)
        sums = (self.top_R, self.top_token_R, self.rest_R, self.rest_logits_R)
        tile = _Tile(
            *(logits_RV.data_ptr(), logits_RV.stride(0), rows, columns, first_token, scale_R.data_ptr()),
            *(tensor.data_ptr() for tensor in (*sums, shrink_R, join_R, joining_R)),
        )
        _ADD_TILE(logits_RV.dtype, ctypes.byref(tile))
        return shrink_R, join_R, joining_R
