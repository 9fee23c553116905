"""Sampling in C++ (sampling.cpp, draws.cpp): linear layers, attention, whole decoder layers, and draws of tokens."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .compiled import Heads, Kernel, Strided, dense, usable

_INPUTS = 32
_OUTPUTS = {torch.bfloat16: 4, torch.float32: 8}
"""Numbers of inputs and outputs are multiples of these."""


class LinearArguments(ctypes.Structure):
    """A linear layer and its adapter as the C++ functions take them."""

    _fields_ = [
        ("weight", ctypes.c_void_p),
        ("outputs", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("bias", "a", "b")),
        ("ranks", ctypes.c_int64),
        ("out", ctypes.c_void_p),
    ]


_FEW_ROWS = Kernel("few_rows", ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.POINTER(LinearArguments), ctypes.c_int64)


@dataclass(frozen=True)
class AdaptedLinear:
    """A linear layer, y = W x + b, with what an adapter adds to it, B A x."""

    weight_NK: Tensor
    bias_N: Tensor | None = None
    a_RK: Tensor | None = None
    b_NR: Tensor | None = None
    """B, with its scale; None where there is no adapter."""


class FewRows:
    """Layers that are given the same few rows. It reads the weights in place, and keeps the adapters' matrices.

    oneDNN is as fast with hundreds of rows, but with the few of a decoding step it reaches two thirds of what the
    processor multiplies, and only from a copy of all weights in a layout of its own.
    """

    def __init__(self, layers: Sequence[AdaptedLinear]) -> None:
        self.sizes = tuple(len(layer.weight_NK) for layer in layers)
        """Numbers of outputs."""
        self.inputs = layers[0].weight_NK.shape[1]
        self.dtype = layers[0].weight_NK.dtype
        self._layers = (LinearArguments * len(layers))()
        # Addresses keep no tensor alive.
        self._kept: list[Tensor] = []
        for place, layer in zip(self._layers, layers, strict=True):
            place.weight, place.outputs = self._address(layer.weight_NK), len(layer.weight_NK)
            if layer.bias_N is not None:
                place.bias = self._address(layer.bias_N.to(self.dtype))
            if layer.a_RK is not None and layer.b_NR is not None:
                a_RK, b_NR = (matrix.detach().to(self.dtype, copy=True) for matrix in (layer.a_RK, layer.b_NR))
                place.ranks = len(a_RK)
                if self.dtype == torch.bfloat16:
                    # Words of two ranks, in the order in which four outputs are computed.
                    missing = -len(a_RK) % 4
                    a_RK = torch.nn.functional.pad(a_RK, (0, 0, 0, missing))
                    place.ranks = len(a_RK) // 2
                    b_NR = torch.nn.functional.pad(b_NR, (0, missing)).view(-1, 4, place.ranks, 2).transpose(1, 2)
                place.a, place.b = self._address(a_RK), self._address(b_NR)

    @staticmethod
    def takes(weight_NK: Tensor) -> bool:
        """Return True if a layer with this weight can be computed here."""
        outputs, inputs = weight_NK.shape
        if not usable(weight_NK.dtype, weight_NK.device) or not weight_NK.is_contiguous():
            return False
        return outputs % _OUTPUTS[weight_NK.dtype] == 0 and inputs % _INPUTS == 0

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs [..., N] of each layer for an input [..., K]."""
        x_TK = x.reshape(-1, self.inputs)
        x_TK = x_TK if x_TK.stride(1) == 1 else x_TK.contiguous()
        outputs = tuple(x.new_empty(*x.shape[:-1], size) for size in self.sizes)
        for place, y in zip(self._layers, outputs, strict=True):
            place.out = y.data_ptr()
        _FEW_ROWS(
            *(self.dtype, x_TK.data_ptr(), x_TK.stride(0), len(x_TK), self.inputs),
            *(self._layers, len(self.sizes)),
        )
        return outputs

    def arguments(self) -> ctypes.Array[LinearArguments]:
        """Return the layers as the C++ functions take them, in memory of their own; what they name must outlive it."""
        return type(self._layers)(*self._layers)

    def _address(self, tensor: Tensor) -> int:
        self._kept.append(tensor.detach().contiguous())
        return self._kept[-1].data_ptr()


_CHUNK_ROWS = 64
"""Rows of a prompt that are attended together: each block of them packs its keys anew."""
_RUN_KEYS = 512
"""Most keys of a run that one thread reads at a time: a long one is read by several."""


class PagedArguments(ctypes.Structure):
    """Arguments of the attention of one layer."""

    _fields_ = [
        *((name, Strided) for name in ("q", "k", "v")),
        *((name, ctypes.c_void_p) for name in ("keys", "values")),
        ("slot_width", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("new_slots", "sources")),
        ("new_count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("slots", "lengths")),
        *((name, ctypes.c_float) for name in ("scale", "softcap")),
        ("window", ctypes.c_int64),
        ("heads", Heads),
        *((name, ctypes.c_void_p) for name in ("sums", "tops", "outs")),
    ]


class ReadArguments(ctypes.Structure):
    """Rows and the runs of slots that they read, for all layers."""

    _fields_ = [
        ("items", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("part_first", "parts")),
    ]


_PAGED = Kernel(
    "paged_attention", ctypes.POINTER(PagedArguments), ctypes.POINTER(ReadArguments), ctypes.c_int64, ctypes.c_void_p
)


class PagedReads:
    """The cache slots that each packed row of a sampling pass reads; the same for all layers.

    Rows that read the same slots are read for together, and a row may read several runs of slots: one softmax runs
    over all of them.
    """

    def __init__(self, tokens: int, new_slots: Tensor, sources: Tensor | None = None) -> None:
        """
        Args:
            tokens: number of packed rows.
            new_slots: cache slots that new keys and values are written to.
            sources: row that each of them is taken from; None is their order.
        """
        self._new_slots, self._sources = new_slots, sources
        self._lengths_T = np.zeros(tokens, np.int64)
        self._slots: list[np.ndarray] = []
        self._slot_count = 0
        self._items: list[tuple[int, int, int, int, int, int]] = []
        self._parts = 0
        self._arguments: tuple[PagedArguments, ReadArguments] | None = None
        self._kept: tuple[Any, ...] = ()

    def see(self, row: int, positions: int) -> None:
        """Let a row see the positions below `positions` of what it reads."""
        self._lengths_T[row] = positions

    def read(self, rows: range, slots_P: np.ndarray, position: int) -> None:
        """Let `rows` read `slots_P`, the first of which holds position `position`."""
        first_slot = self._keep(slots_P)
        pieces = max(1, -(-len(slots_P) // _RUN_KEYS))
        bounds = [len(slots_P) * piece // pieces for piece in range(pieces + 1)]
        for start, stop in pairwise(bounds):
            self._add(rows, first_slot + start, stop - start, position + start)

    def read_prompt(self, rows: range, slots_P: np.ndarray) -> None:
        """Let `rows`, the last positions of a prompt, read and see all slots up to their own."""
        self._lengths_T[rows.start : rows.stop] = np.arange(len(slots_P) - len(rows), len(slots_P)) + 1
        first_slot = self._keep(slots_P)
        for start in range(rows.start, rows.stop, _CHUNK_ROWS):
            some = range(start, min(start + _CHUNK_ROWS, rows.stop))
            self._add(some, first_slot, len(slots_P) - (rows.stop - some.stop), 0)

    def of_layer(
        self,
        cache_CW: tuple[Tensor, Tensor],
        heads: Heads,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> tuple[PagedArguments, ReadArguments]:
        """Return the arguments of one layer, all but its queries, keys and values; and the reads of all layers."""
        if self._arguments is None:
            self._arguments = self._freeze(heads)
        arguments, (keys_CW, values_CW) = self._arguments[0], cache_CW
        arguments.keys, arguments.values = keys_CW.data_ptr(), values_CW.data_ptr()
        arguments.slot_width, arguments.heads = keys_CW.stride(0), heads
        arguments.scale, arguments.softcap, arguments.window = scale, softcap or 0.0, window or 0
        return self._arguments

    def _freeze(self, heads: Heads) -> tuple[PagedArguments, ReadArguments]:
        """Return the reads as arrays, with room for the results of each part."""
        row_of_part = np.concatenate([np.arange(first, last) for first, last, *_ in self._items])
        counts = np.bincount(row_of_part, minlength=len(self._lengths_T))
        slots_P = np.ascontiguousarray(np.concatenate(self._slots), np.int64)
        results = self._parts * heads.query
        sums, tops, outs = torch.empty(results), torch.empty(results), torch.empty(results * heads.size)
        arguments = PagedArguments(
            new_slots=self._new_slots.data_ptr(),
            sources=None if self._sources is None else self._sources.data_ptr(),
            new_count=self._new_slots.numel(),
            slots=slots_P.ctypes.data,
            lengths=self._lengths_T.ctypes.data,
            sums=sums.data_ptr(),
            tops=tops.data_ptr(),
            outs=outs.data_ptr(),
        )
        items = np.array(self._items, np.int64)
        part_first = np.concatenate([[0], counts.cumsum()]).astype(np.int64)
        parts = np.argsort(row_of_part, kind="stable").astype(np.int64)
        # Addresses keep nothing alive.
        self._kept = (slots_P, sums, tops, outs, items, part_first, parts)
        return arguments, ReadArguments(items.ctypes.data, len(items), part_first.ctypes.data, parts.ctypes.data)

    def _keep(self, slots_P: np.ndarray) -> int:
        first = self._slot_count
        self._slots.append(slots_P)
        self._slot_count += len(slots_P)
        return first

    def _add(self, rows: range, first_slot: int, keys: int, position: int) -> None:
        self._items.append((rows.start, rows.stop, first_slot, keys, position, self._parts))
        self._parts += len(rows)


def paged_attention(
    q_HTD: Tensor,
    k_HTD: Tensor,
    v_HTD: Tensor,
    cache_CW: tuple[Tensor, Tensor],
    reads: PagedReads,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Store the keys and values of T packed rows in the cache of one layer, and return the rows' attention [T, H, D].

    Args:
        cache_CW: keys and values of the cache, [slots, key heads x D].
        reads: which rows read which slots; every row reads at least its own.
        scale, window, softcap: see `Scoring`.
    """
    heads, tokens, size = q_HTD.shape
    q_HTD, k_HTD, v_HTD = dense(q_HTD), dense(k_HTD), dense(v_HTD)
    out_THD = q_HTD.new_empty(tokens, heads, size)
    arguments, of_all = reads.of_layer(cache_CW, Heads(heads, k_HTD.shape[0], size), scale, window, softcap)
    arguments.q, arguments.k, arguments.v = Strided.of(q_HTD), Strided.of(k_HTD), Strided.of(v_HTD)
    _PAGED(q_HTD.dtype, arguments, of_all, tokens, out_THD.data_ptr())
    return out_THD


class _Group(ctypes.Structure):
    _fields_ = [("layers", ctypes.POINTER(LinearArguments)), *((name, ctypes.c_int64) for name in ("count", "inputs"))]


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
    """The layers of a model, and its last norm, computed in one call.

    A layer by itself is ten calls of some 30 microseconds of work. Between two of them Python computes with one thread,
    and the others wait.
    """

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
        paged, of_all = reads.of_layer((keys_LCW[0], values_LCW[0]), Heads(*heads), scale)
        out_TM = x_TM.new_empty(x_TM.shape)
        _DECODER_LAYERS(
            *(x_TM.dtype, self._arguments, paged, of_all, angles_TD[0].data_ptr(), angles_TD[1].data_ptr()),
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
                _Group(ctypes.cast(arguments, ctypes.POINTER(LinearArguments)), len(arguments), group.inputs)
                for arguments, group in zip(linears, layer.linears, strict=True)
            ),
        )


class _Drawing(ctypes.Structure):
    _fields_ = [
        ("logits", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("row", "vocabulary")),
        *((name, ctypes.c_void_p) for name in ("rows", "temperatures", "greedy", "uniforms", "masks", "allowed")),
        ("words", ctypes.c_int64),
    ]


_DRAW = Kernel("draw_tokens", ctypes.POINTER(_Drawing), ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)


def can_draw(logits_BV: Tensor) -> bool:
    """Return True if `draw_tokens` takes these logits, or a tensor of their kind, here."""
    return usable(logits_BV.dtype, logits_BV.device)


def draw_tokens(
    logits_BV: Tensor,
    rows: Sequence[int],
    temperatures: Sequence[float],
    uniforms: Sequence[float],
    allowed: Sequence[npt.NDArray[np.int32] | None],
) -> tuple[list[int], list[float]]:
    """Return a token for each draw, and its log-probability under the whole distribution after temperature.

    One pass over a row of logits, in their own type; torch makes a float32 copy of all rows, and reads and writes it
    six times. The token is the same: the one at which the cumulated probability, summed in buckets of 128, reaches a
    number. The log-probability is NaN where a row has infinite logits or NaN, and where no allowed token has a
    probability.

    Args:
        rows: the row of logits that each draw is from.
        temperatures: divisors of the logits; 0 takes the most likely token.
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
        *(logits_BV.data_ptr(), logits_BV.stride(0), vocabulary),
        *(tensor.data_ptr() for tensor in inputs),
        *(words_AW.ctypes.data, words_AW.shape[1]),
    )
    _DRAW(logits_BV.dtype, ctypes.byref(drawing), len(rows), tokens.data_ptr(), logprobs.data_ptr())
    return tokens.tolist(), logprobs.tolist()
