"""Attention, norms, gates, rotations and draws in C++ for processors that multiply bfloat16, compiled at first use."""

from .compiled import Unused, usable, why_unused
from .draws import can_draw, draw_tokens
from .layers import add_low_rank, packed_pairs, rms_norm, rotated, silu_product
from .paged import PagedReads, paged_attention
from .trees import TreeReads, tree_attention

__all__ = [
    "PagedReads",
    "TreeReads",
    "Unused",
    "add_low_rank",
    "can_draw",
    "draw_tokens",
    "packed_pairs",
    "paged_attention",
    "rms_norm",
    "rotated",
    "silu_product",
    "tree_attention",
    "usable",
    "why_unused",
]
