"""Linear layers, and whole decoder layers, for sampling a few rows on a CPU.

A decoding step multiplies every weight with a few rows. torch's product then reaches half of the processor's speed, and
each call has a fixed cost. So layers with the same input are computed together, in C++ from the weights in place
(kernels/), with the adapter beside its layer. Where C++ cannot be used, float32 is computed from copies in oneDNN's
blocked layout with the adapter added, and 16-bit types by the modules: a sum would be rounded, and the sampler's
log-probabilities would no longer be the learner's. All copies are freed before the weights may change, and so before
learning needs the memory.

`DecoderStack` computes all layers of a few rows in one C++ call, for models that are built like Llama. Learning and
prompts use the modules of transformers. The first pass is computed both ways, and if the results differ, the modules
are used from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from . import kernels
from .sampling_attention import PagedTables

_ROWS = 16
"""Number of rows that the layout is optimised for."""
FEW_ROWS = 160
"""Maximum number of rows of a product in C++; with more, torch's product is as fast."""
_ALIKE = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of layers with the same input. A layer that gets another input is computed alone."""


@dataclass(frozen=True)
class _Pack:
    """Layers of float32 that are computed together: y = W x + b."""

    weight: Tensor
    """W of all layers with the adapter added to it, in the blocked layout."""
    bias: Tensor | None
    sizes: tuple[int, ...]
    """Number of outputs of each layer."""

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return tuple(part.contiguous() for part in torch.split(y, list(self.sizes), -1))


class PackedLinears:
    """The linear layers of `base`, each with the adapters it may have."""

    def __init__(self, base: nn.Module) -> None:
        self._packs: dict[nn.Module, _Pack | kernels.FewRows] = {}
        """Each group of layers, by its first layer."""
        self._others: dict[nn.Module, tuple[Tensor, Tensor]] = {}
        """For each further layer of a group: the input that it should get next, and its output for that input."""
        self._adapter: str | None = None
        self._resting = False
        """True while learning uses these layers and the copies are kept for later."""
        self._groups = list(_groups(base))
        for group in self._groups:
            for layer in group:
                layer.forward = partial(self._forward, group, layer, layer.forward)

    def pack(self, adapter: str | None) -> None:
        """Compute with copies that have `adapter`, or none.

        This happens where all layers are plain ones on the CPU, in float32 or where C++ computes them.
        """
        if self._packs and self._adapter == adapter:
            self._resting = False
            return
        self.release()
        if not all(_can_be_packed(layer) for group in self._groups for layer in group):
            return
        with torch.no_grad():
            for group in self._groups:
                if all(kernels.FewRows.takes(_linear_of(layer).weight) for layer in group):
                    self._packs[group[0]] = _in_place(group, adapter)
                elif _linear_of(group[0]).weight.dtype == torch.float32:
                    self._packs[group[0]] = _packed(group, adapter)
        self._adapter = adapter

    def release(self) -> None:
        """Free the copies before the weights change or their memory is needed."""
        self._packs.clear()
        self._others.clear()
        self._resting = False

    def rest(self) -> None:
        """Compute without the copies, and keep them, until `pack` is called again."""
        self._resting = True
        self._others.clear()

    @property
    def in_place(self) -> bool:
        """True if few rows are computed in C++."""
        return not self._resting and isinstance(next(iter(self._packs.values()), None), kernels.FewRows)

    def few_rows(self, layer: nn.Module) -> kernels.FewRows | None:
        """Return the group whose first layer is `layer`, if it is computed in C++."""
        pack = self._packs.get(layer)
        return pack if isinstance(pack, kernels.FewRows) else None

    def _forward(
        self, group: Sequence[Any], layer: Any, unpacked: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        pack = self._packs.get(group[0])
        # Copies have no gradient, so with gradients on this is not sampling.
        if pack is None or self._resting or torch.is_grad_enabled():
            return unpacked(x, *args, **kwargs)
        if isinstance(pack, kernels.FewRows) and (x.dtype != pack.dtype or x.numel() > FEW_ROWS * x.shape[-1]):
            return unpacked(x, *args, **kwargs)
        if layer is group[0]:
            first, *further = pack(x)
            self._others.update(zip(group[1:], ((x, y) for y in further), strict=True))
            return first
        # Popped, so that no tensor outlives the pass; compared, as an architecture may pass another input.
        given, y = self._others.pop(layer, (None, x))
        return y if given is x else unpacked(x, *args, **kwargs)


def _groups(base: nn.Module) -> Iterator[list[Any]]:
    """Yield the linear layers in groups of the same input."""
    layers = _outermost_linears(base)
    left = {id(layer) for layer in layers}
    for parent in base.modules():
        for names in _ALIKE:
            group = [getattr(parent, name, None) for name in names]
            if not left.issuperset(map(id, group)):
                continue
            linears = [_linear_of(layer) for layer in group]
            if len({(linear.in_features, linear.weight.dtype) for linear in linears}) == 1:
                left.difference_update(map(id, group))
                yield group
    yield from ([layer] for layer in layers if id(layer) in left)


def _outermost_linears(base: nn.Module) -> list[Any]:
    """Return plain linear layers, and the wrappers of those that have adapters."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    # A wrapper holds its base layer and the matrices of each adapter, which are linear layers too.
    with_adapters = [module for module in base.modules() if isinstance(module, BaseTunerLayer)]
    inside = {id(part) for module in with_adapters for part in module.modules()}
    return [*with_adapters, *(m for m in base.modules() if type(m) is nn.Linear and id(m) not in inside)]


def _in_place(group: Sequence[Any], adapter: str | None) -> kernels.FewRows:
    layers = []
    for layer in group:
        linear = _linear_of(layer)
        a_RK = b_NR = None
        if layer is not linear and adapter in layer.lora_A:
            a_RK = layer.lora_A[adapter].weight
            b_NR = layer.lora_B[adapter].weight * layer.scaling[adapter]
        layers.append(kernels.AdaptedLinear(linear.weight, linear.bias, a_RK, b_NR))
    return kernels.FewRows(layers)


def _packed(group: Sequence[Any], adapter: str | None) -> _Pack:
    linears = [_linear_of(layer) for layer in group]
    sizes = tuple(linear.out_features for linear in linears)
    weights = [linear.weight.detach() for linear in linears]
    for n, layer in enumerate(group):
        if layer is not linears[n] and adapter in layer.lora_A:
            weights[n] = layer.get_delta_weight(adapter).add_(weights[n])
    rows_NK = torch.cat(weights) if len(weights) > 1 else weights[0]
    bias_N = None
    if any(linear.bias is not None for linear in linears):
        bias_N = torch.cat([rows_NK.new_zeros(n.out_features) if n.bias is None else n.bias.detach() for n in linears])
    return _Pack(torch.ops.mkldnn._reorder_linear_weight(rows_NK, _ROWS), bias_N, sizes)


def _linear_of(layer: Any) -> Any:
    return layer if type(layer) is nn.Linear else layer.base_layer


def _can_be_packed(layer: Any) -> bool:
    linear = _linear_of(layer)
    if type(linear) is not nn.Linear or (linear is not layer and layer.lora_variant):
        return False
    has_onednn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch
    return has_onednn and linear.weight.device.type == "cpu"


logger = logging.getLogger(__name__)

_PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_OF_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"}
_OF_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}


class DecoderStack:
    """Computes all layers of a model in one C++ call."""

    def __init__(
        self, backbone: nn.Module, fused: set[nn.Module], packed: PackedLinears, heads: tuple[int, int, int]
    ) -> None:
        """
        Args:
            fused: modules of which C++ computes norms, gates and rotations (`fuse_layers`).
            packed: the linear layers.
            heads: numbers of query and of key heads, and their size.
        """
        self._backbone: Any = backbone
        self._packed = packed
        self._heads = heads
        self._agrees: bool | None = None
        """True if C++ has given the modules' results; None before the comparison."""
        if not _is_known(backbone, fused):
            self._agrees = False
            logger.info(
                "sampling computes the layers of %s through torch: the C++ kernels do not support them",
                type(backbone).__name__,
            )
        self._decoder: kernels.DecoderLayers | None = None
        self._made_of: kernels.FewRows | None = None

    def hidden(
        self, tokens_T: Tensor, positions_T: Tensor, tables: Any, by_modules: Callable[[], Tensor]
    ) -> Tensor | None:
        """Return the last hidden states [T, M] of a pass; None if C++ does not compute it.

        Args:
            by_modules: computes the same with the modules.
        """
        if self._agrees is False or not isinstance(tables, PagedTables) or tokens_T.numel() > FEW_ROWS:
            return None
        if torch.is_grad_enabled() or not self._packed.in_place:
            return None
        decoder = self._made()
        if decoder is None:
            return None
        x_TM = self._backbone.embed_tokens(tokens_T)
        angles_1TD = self._backbone.rotary_emb(x_TM[None], positions_T[None])
        scale = self._backbone.layers[0].self_attn.scaling
        angles_TD = tuple(angle[0].contiguous() for angle in angles_1TD)
        hidden_TM = decoder(x_TM, angles_TD, tables.cache_LCW, tables.reads(len(x_TM)), self._heads, scale)
        if self._agrees is None:
            return self._tried(hidden_TM, by_modules())
        return hidden_TM

    def release(self) -> None:
        """Drop the copies of the adapter before the weights change."""
        self._decoder = self._made_of = None

    def _tried(self, hidden_TM: Tensor, expected_TM: Tensor) -> Tensor:
        difference = float((hidden_TM.float() - expected_TM.float()).abs().max() / expected_TM.float().abs().max())
        self._agrees = difference < 2**-5
        if not self._agrees:
            logger.warning(
                "sampling computes the layers through torch: C++ differs by %.3g of the largest value", difference
            )
        return expected_TM

    def _made(self) -> kernels.DecoderLayers | None:
        """Return the layers with the adapter that is in use."""
        first = self._packed.few_rows(self._backbone.layers[0].self_attn.q_proj)
        if first is None or first is not self._made_of:
            layers = [self._layer(layer) for layer in self._backbone.layers]
            whole = [layer for layer in layers if layer is not None]
            norm = self._backbone.norm
            fits = len(whole) == len(layers)
            self._decoder = kernels.DecoderLayers(whole, norm.weight, norm.variance_epsilon) if fits else None
            self._made_of = first
        return self._decoder

    def _layer(self, layer: Any) -> kernels.DecoderLayer | None:
        attention, mlp = layer.self_attn, layer.mlp
        firsts = (attention.q_proj, attention.o_proj, mlp.gate_proj, mlp.down_proj)
        groups = tuple(group for group in map(self._packed.few_rows, firsts) if group is not None)
        if [len(group.sizes) for group in groups] != [3, 1, 2, 1]:
            return None
        return kernels.DecoderLayer(
            layer.input_layernorm.weight,
            layer.post_attention_layernorm.weight,
            groups,
            query_norm_D=attention.q_norm.weight if hasattr(attention, "q_norm") else None,
            key_norm_D=attention.k_norm.weight if hasattr(attention, "k_norm") else None,
        )


def _is_known(backbone: Any, fused: set[nn.Module]) -> bool:
    """Return True if all layers have exactly the parts that C++ computes."""
    if not all(isinstance(getattr(backbone, name, None), nn.Module) for name in ("embed_tokens", "norm", "rotary_emb")):
        return False
    layers = getattr(backbone, "layers", None)
    if not isinstance(layers, nn.ModuleList) or not len(layers):
        return False
    modules = [*layers.modules(), *backbone.norm.modules()]
    norms = [module for module in modules if isinstance(getattr(module, "variance_epsilon", None), float)]
    same = len({norm.variance_epsilon for norm in norms}) == 1
    return same and fused.issuperset(norms) and all(_layer_is_known(layer, fused) for layer in layers)


def _layer_is_known(layer: Any, fused: set[nn.Module]) -> bool:
    if _names(layer) != _PARTS or not fused.issuperset(layer.children()):
        return False
    # A window: the first pass may be too short to show the difference.
    sees_all = getattr(layer.self_attn, "sliding_window", None) is None and hasattr(layer.self_attn, "scaling")
    return sees_all and _names(layer.self_attn) <= _OF_ATTENTION and _names(layer.mlp) <= _OF_MLP


def _names(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}
