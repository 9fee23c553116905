"""The C++ of sampling and learning on a CPU, in bfloat16 or float32, compiled at first use.

`compiled.py` builds and loads the library, `sampling.py` has what decode steps call, `learning.py` what has gradients.
"""

from .compiled import VARIANTS as VARIANTS
from .compiled import Unused as Unused
from .compiled import usable as usable
from .compiled import why_unused as why_unused
from .learning import HeadSums as HeadSums
from .learning import TreeReads as TreeReads
from .learning import adapted_gradients as adapted_gradients
from .learning import add_adapted as add_adapted
from .learning import can_adapt as can_adapt
from .learning import rms_norm as rms_norm
from .learning import rotated as rotated
from .learning import silu_product as silu_product
from .learning import tree_attention as tree_attention
from .sampling import AdaptedLinear as AdaptedLinear
from .sampling import DecoderLayer as DecoderLayer
from .sampling import DecoderLayers as DecoderLayers
from .sampling import FewRows as FewRows
from .sampling import PagedReads as PagedReads
from .sampling import can_draw as can_draw
from .sampling import draw_tokens as draw_tokens
from .sampling import paged_attention as paged_attention
