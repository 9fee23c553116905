"""Softmax over a block of the vocabulary in C++ (head.cpp): the sums of frozen_head.py in two passes over the logits.

torch makes a float32 copy of the logits, and reads or writes tensors of their size some ten times.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from .compiled import Kernel


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
    """Sums of the softmax of R rows of logits, of which it has seen some blocks (frozen_head.py)."""

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
        _ADD_TILE(ctypes.byref(tile))
        return shrink_R, join_R, joining_R
