"""All decoder layers of a few rows in one call of C++ (kernels/decoder.py), where a model is built as Llama is.

transformers' modules stay what learning and prompts run through. That both compute the same is not read off a model's
name: the first pass goes both ways, and where the numbers differ the modules keep the work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from . import kernels
from .packed_linear import FEW_ROWS, PackedLinears
from .sampling_attention import PagedTables

logger = logging.getLogger(__name__)

_PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_OF_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"}
_OF_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}


class DecoderStack:
    """The layers of a model as C++ computes them."""

    def __init__(
        self, backbone: nn.Module, fused: set[nn.Module], packed: PackedLinears, heads: tuple[int, int, int]
    ) -> None:
        """
        Args:
            fused: modules that compute what C++ does for norms, gates and rotations.
            packed: the linear layers.
            heads: numbers of query and of key heads, and their size.
        """
        self._backbone: Any = backbone
        self._packed = packed
        self._heads = heads
        self._agrees: bool | None = None if _is_known(backbone, fused) else False
        """True once C++ has given the modules' numbers; None until it was tried."""
        self._decoder: kernels.DecoderLayers | None = None
        self._made_of: kernels.FewRows | None = None

    def hidden(
        self, tokens_T: Tensor, positions_T: Tensor, tables: Any, by_modules: Callable[[], Tensor]
    ) -> Tensor | None:
        """Return the last hidden states [T, M] of a pass; None where it is not one for C++.

        Args:
            by_modules: computes the same by the modules.
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
        found_TM = decoder(x_TM, angles_TD, tables.cache_LCW, tables.reads(len(x_TM)), self._heads, scale)
        if self._agrees is None:
            return self._tried(found_TM, by_modules())
        return found_TM

    def release(self) -> None:
        """Drop what was made of the adapter: the weights are about to change."""
        self._decoder = self._made_of = None

    def _tried(self, found_TM: Tensor, expected_TM: Tensor) -> Tensor:
        apart = float((found_TM.float() - expected_TM.float()).abs().max() / expected_TM.float().abs().max())
        self._agrees = apart < 2**-5
        if not self._agrees:
            logger.debug("layers are computed one by one: together they were %.3g apart", apart)
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
            query_norm_D=_weight_of(attention, "q_norm"),
            key_norm_D=_weight_of(attention, "k_norm"),
        )


def _weight_of(attention: Any, norm: str) -> Tensor | None:
    found: nn.Module | None = getattr(attention, norm, None)
    return None if found is None else found.get_parameter("weight")


def _is_known(backbone: Any, fused: set[nn.Module]) -> bool:
    """Return True if all layers have the parts that C++ knows, and nothing else."""
    if not all(isinstance(getattr(backbone, name, None), nn.Module) for name in ("embed_tokens", "norm", "rotary_emb")):
        return False
    layers = getattr(backbone, "layers", None)
    if not isinstance(layers, nn.ModuleList) or not len(layers):
        return False
    norms = [module for part in (layers, backbone.norm) for module in part.modules() if _is_norm(module)]
    same = len({norm.variance_epsilon for norm in norms}) == 1
    return same and fused.issuperset(norms) and all(_layer_is_known(layer, fused) for layer in layers)


def _is_norm(module: nn.Module) -> bool:
    return isinstance(getattr(module, "variance_epsilon", None), float)


def _layer_is_known(layer: Any, fused: set[nn.Module]) -> bool:
    if _names(layer) != _PARTS or not fused.issuperset(layer.children()):
        return False
    # A window hides tokens, which the first pass may be too short to show.
    sees_all = getattr(layer.self_attn, "sliding_window", None) is None and hasattr(layer.self_attn, "scaling")
    return sees_all and _names(layer.self_attn) <= _OF_ATTENTION and _names(layer.mlp) <= _OF_MLP


def _names(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}
