"""The number of products of matrices that oneDNN keeps prepared on a CPU, in two caches that torch leaves at 1,024.

A product is prepared for its exact number of rows, and a server's passes have ever other numbers of tokens. oneDNN
keeps the code of each, the layer of torch above it its description, and each of both holds a table of about 250 KiB
whatever the model's size. Full, they take more than half a gigabyte, and what they let go leaves holes in the heap:
after 3,000 products of ever other rows a process held 2.2 GiB, with a bound of 128 half a GiB.
"""

from __future__ import annotations

import os
from typing import Final

PREPARED: Final = 128
"""Products that stay prepared: those of the last fifteen numbers of tokens, at about eight a pass.

A layer's product recurs in every layer, so a pass prepares each once whatever this number is. To prepare one of
48 x 96 takes 0.35 ms (other sizes were not measured); it is three or four more in a pass than with 1,024.
"""
_VARIABLES: Final = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Of oneDNN, and of torch's layer above it, which has one cache for each thread."""


def bound_product_caches() -> None:
    """Bound both caches, unless the environment says how large they are to be.

    They are made at the first product in 16 bits or with blocked weights, and read the environment then, so this comes
    before a model is loaded. Neither has a function for it that torch exports.
    """
    for name in _VARIABLES:
        os.environ.setdefault(name, str(PREPARED))
