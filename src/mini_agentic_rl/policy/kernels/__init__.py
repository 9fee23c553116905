"""Attention, norms, gates, rotations and draws in C++ for processors that multiply bfloat16, compiled at first use."""

from .adapters import add_adapted, add_adapted_back, can_adapt, outer_product
from .compiled import usable
from .draws import can_draw, draw_tokens
from .head import HeadSums
from .layers import rms_norm, rotated, silu_product
from .linears import AdaptedLinear, FewRows
from .paged import PagedReads, paged_attention
from .trees import TreeReads, tree_attention

__all__ = [
    "AdaptedLinear",
    "FewRows",
    "HeadSums",
    "PagedReads",
    "TreeReads",
    "add_adapted",
    "add_adapted_back",
    "can_adapt",
    "can_draw",
    "draw_tokens",
    "outer_product",
    "paged_attention",
    "rms_norm",
    "rotated",
    "silu_product",
    "tree_attention",
    "usable",
]
