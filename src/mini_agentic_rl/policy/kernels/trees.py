"""Attention of learning in C++ (trees.cpp): a chunk of packed trees over itself and its context."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .compiled import Heads, Kernel, Strided, dense


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
    """int64 [blocks, 5]: first and last row, first and last of the chunk's own tokens that they look at, and the number
    of leading tokens of the context that they see."""
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
        _FORWARD(_arguments(inputs, reads, scale), out_THD.data_ptr())
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
