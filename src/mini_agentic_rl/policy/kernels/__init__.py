"""The C++ of CPUs that multiply bfloat16, compiled at first use.

`compiled.py` builds and loads the library, `sampling.py` has what decode steps call, `learning.py` what has gradients.
"""

from .compiled import Unused, usable, why_unused
from .learning import (
    HeadSums,
    TreeReads,
    adapted_gradients,
    add_adapted,
    can_adapt,
    rms_norm,
    rotated,
    silu_product,
    tree_attention,
)
from .sampling import (
    AdaptedLinear,
    DecoderLayer,
    DecoderLayers,
    FewRows,
    PagedReads,
    can_draw,
    draw_tokens,
    paged_attention,
)

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
