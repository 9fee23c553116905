"""Whole decoder layers of a few rows in C++ (sampling.cpp): all of them in one call.

A layer by itself is ten calls of some 30 microseconds of work. Between two of them Python computes with one thread, and
the others wait.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from .compiled import Heads, Kernel
from .linears import FewRows, LinearArguments
from .paged import PagedArguments, PagedReads, ReadArguments


class _Group(ctypes.Structure):
    _fields_ = [
        ("layers", ctypes.POINTER(LinearArguments)),
        *((name, ctypes.c_int64) for name in ("count", "inputs")),
    ]


class _DecoderLayer(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("norm", "query_norm", "key_norm", "later_norm")),
        *((name, _Group) for name in ("attention", "output", "gates", "down")),
    ]


class _Layers(ctypes.Structure):
    _fields_ = [
        ("layers", ctypes.POINTER(_DecoderLayer)),
        ("count", ctypes.c_int64),
        ("last_norm", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("width", "inner")),
        ("epsilon", ctypes.c_float),
        ("cache_layer", ctypes.c_int64),
    ]


_DECODER_LAYERS = Kernel(
    "decoder_layers",
    *(ctypes.POINTER(_Layers), ctypes.POINTER(PagedArguments), ctypes.POINTER(ReadArguments)),
    *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p),
)


@dataclass(frozen=True)
class DecoderLayer:
    """A layer that adds to its input what attention makes of its norm, and then what gate, up and down make of the
    norm of that."""

    norm_M: Tensor
    later_norm_M: Tensor
    linears: Sequence[FewRows]
    """Those of queries, keys and values; of the output of attention; of gate and up; of down."""
    query_norm_D: Tensor | None = None
    """Norms of each head's queries and keys; None where they have none."""
    key_norm_D: Tensor | None = None


class DecoderLayers:
    """The layers of a model, and its last norm."""

    def __init__(self, layers: Sequence[DecoderLayer], last_norm_M: Tensor, epsilon: float) -> None:
        """
        Args:
            epsilon: what all norms add to the mean square.
        """
        # Addresses keep nothing alive.
        self._kept: list[object] = [*layers, last_norm_M]
        arguments = (_DecoderLayer * len(layers))(*map(self._of_layer, layers))
        sizes = (last_norm_M.numel(), layers[0].linears[2].sizes[0])
        self._arguments = _Layers(arguments, len(layers), last_norm_M.data_ptr(), *sizes, epsilon)

    def __call__(
        self,
        x_TM: Tensor,
        angles_TD: tuple[Tensor, Tensor],
        cache_LCW: tuple[Tensor, Tensor],
        reads: PagedReads,
        heads: tuple[int, int, int],
        scale: float,
    ) -> Tensor:
        """Return the last hidden states [T, M] of embeddings, which are overwritten.

        Args:
            angles_TD: cosines and sines of the rotary embedding.
            cache_LCW: keys and values of the cache; those of the rows are stored there.
            reads: which rows read which slots.
            heads: numbers of query and of key heads, and their size.
            scale: factor on the scores.
        """
        keys_LCW, values_LCW = cache_LCW
        self._arguments.cache_layer = keys_LCW.stride(0)
        arrays = reads.frozen(heads[0], heads[2])
        paged = arrays.of_layer((keys_LCW[0], values_LCW[0]), Heads(*heads), scale)
        out_TM = x_TM.new_empty(x_TM.shape)
        _DECODER_LAYERS(
            *(self._arguments, paged, arrays.reads, angles_TD[0].data_ptr(), angles_TD[1].data_ptr()),
            *(len(x_TM), x_TM.data_ptr(), out_TM.data_ptr()),
        )
        return out_TM

    def _of_layer(self, layer: DecoderLayer) -> _DecoderLayer:
        norms = (layer.norm_M, layer.query_norm_D, layer.key_norm_D, layer.later_norm_M)
        # Of its own, because each writes its outputs to one place.
        linears = [group.arguments() for group in layer.linears]
        self._kept += linears
        return _DecoderLayer(
            *(None if norm is None else norm.data_ptr() for norm in norms),
            *(
                _Group(ctypes.cast(one, ctypes.POINTER(LinearArguments)), len(one), group.inputs)
                for one, group in zip(linears, layer.linears, strict=True)
            ),
        )
