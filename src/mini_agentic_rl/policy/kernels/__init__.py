"""The C++ of CPUs that multiply bfloat16, compiled at first use: attention, norms, gates and rotations, adapters,
products of a decode step and its layers as a whole, the softmax of the head, and draws."""

from .adapters import adapted_gradients, add_adapted, can_adapt
from .compiled import Unused, usable, why_unused
from .decoder import DecoderLayer, DecoderLayers
from .draws import can_draw, draw_tokens
from .head import HeadSums
from .layers import rms_norm, rotated, silu_product
from .linears import AdaptedLinear, FewRows
from .paged import PagedReads, paged_attention
from .trees import TreeReads, tree_attention

__all__ = [
    "AdaptedLinear",
    "DecoderLayer",
    "DecoderLayers",
    "FewRows",
    "HeadSums",
    "PagedReads",
    "TreeReads",
    "Unused",
    "adapted_gradients",
    "add_adapted",
    "can_adapt",
    "can_draw",
    "draw_tokens",
    "paged_attention",
    "rms_norm",
    "rotated",
    "silu_product",
    "tree_attention",
    "usable",
    "why_unused",
]
