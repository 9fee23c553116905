"""Draws of tokens in C++ (draws.cpp): one pass over a row of logits, in the type that the head gives them in.

torch makes a float32 copy of all rows, and reads and writes it six times. What is drawn is the same: the token at which
the cumulated probability reaches a number, summed in buckets of 128.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .compiled import Kernel, library


class _Drawing(ctypes.Structure):
    _fields_ = [
        ("logits", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("row", "vocabulary")),
        ("wide", ctypes.c_bool),
        *((name, ctypes.c_void_p) for name in ("rows", "temperatures", "greedy", "uniforms", "masks", "allowed")),
        ("words", ctypes.c_int64),
    ]


_DRAW = Kernel("draw_tokens", ctypes.POINTER(_Drawing), ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)


def can_draw(logits_BV: Tensor) -> bool:
    """Return True if `draw_tokens` takes these logits, or a tensor of their kind, here."""
    taken = logits_BV.dtype in (torch.bfloat16, torch.float32)
    return taken and logits_BV.device.type == "cpu" and library() is not None


def draw_tokens(
    logits_BV: Tensor,
    rows: Sequence[int],
    temperatures: Sequence[float],
    uniforms: Sequence[float],
    allowed: Sequence[npt.NDArray[np.int32] | None],
) -> tuple[list[int], list[float]]:
    """Return a token for each draw, and its log-probability under the whole distribution after temperature.

    That is NaN where a row has infinite logits or NaN, and where none that is allowed has a probability.

    Args:
        rows: the row of logits that each draw is from.
        temperatures: what the draws' logits are divided by; 0 takes the likeliest, and divides by nothing.
        uniforms: a number in (0, 1) for each draw.
        allowed: the tokens that each may take, a bit for each of the vocabulary; None for all.
    """
    logits_BV = logits_BV if logits_BV.stride(1) == 1 else logits_BV.contiguous()
    vocabulary = logits_BV.shape[1]
    masks = [mask for mask in allowed if mask is not None]
    words_AW = np.stack(masks) if masks else np.empty((0, -(-vocabulary // 32)), np.int32)
    if words_AW.shape[1] * 32 < vocabulary or not 0 <= min(rows) <= max(rows) < len(logits_BV):
        raise ValueError("a mask of the draws is shorter than the vocabulary, or a row is not there")
    number = iter(range(len(masks)))
    inputs = (
        torch.tensor(rows),
        torch.tensor([temperature or 1.0 for temperature in temperatures], dtype=torch.float32),
        torch.tensor([temperature == 0 for temperature in temperatures]),
        torch.tensor(uniforms, dtype=torch.float64),
        torch.tensor([-1 if mask is None else next(number) for mask in allowed]),
    )
    tokens, logprobs = torch.empty(len(rows), dtype=torch.long), torch.empty(len(rows), dtype=torch.float64)
    drawing = _Drawing(
        *(logits_BV.data_ptr(), logits_BV.stride(0), vocabulary, logits_BV.dtype == torch.float32),
        *(tensor.data_ptr() for tensor in inputs),
        *(words_AW.ctypes.data, words_AW.shape[1]),
    )
    _DRAW(ctypes.byref(drawing), len(rows), tokens.data_ptr(), logprobs.data_ptr())
    return tokens.tolist(), logprobs.tolist()
