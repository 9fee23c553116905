"""Norms, gated products and rotary embeddings of a model in one pass each, where C++ is compiled (kernels/).

transformers writes each as several operations, and every one of them reads and writes tensors of the layer's size. The
modules stay in place and keep their weights; only how they compute changes, and only where a trial on random numbers
shows that a module computes what ours does. With other types, devices or trained norms it computes as it did.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from . import kernels

_ROTATION = "apply_rotary_pos_emb"
"""Name of the function by which attention modules of transformers rotate queries and keys."""


def fuse_layers(base: nn.Module) -> set[nn.Module]:
    """Let the modules of `base` between its products compute in one pass where they can, and return those that do."""
    fused = set()
    learning = [module for module in base.modules() if module.training]
    base.eval()  # what drops at random cannot be compared
    with torch.no_grad():
        for module in list(base.modules()):
            forward = _fused_norm(module) or _fused_mlp(module) or _fused_attention(module)
            if forward is not None:
                module.forward = forward
                fused.add(module)
    for module in learning:
        module.training = True
    return fused


def _fused_norm(module: Any) -> Callable[..., Tensor] | None:
    weight, epsilon = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
    if not isinstance(epsilon, float) or not isinstance(weight, Tensor) or weight.dim() != 1:
        return None
    if not _fits(weight) or weight.numel() % 16:
        return None
    x_TM = _trial(3, weight.numel())
    same = _alike(module(x_TM), kernels.rms_norm(x_TM, weight, epsilon))
    return partial(_norm, module, module.forward) if same else None


def _norm(module: Any, unfused: Callable[..., Tensor], x: Tensor) -> Tensor:
    if not _fits(x) or module.weight.requires_grad:
        return unfused(x)
    return kernels.rms_norm(x, module.weight, module.variance_epsilon)


def _fused_mlp(module: Any) -> Callable[..., Tensor] | None:
    parts = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj", "act_fn")]
    if not all(isinstance(part, nn.Module) for part in parts):
        return None
    weight = getattr(parts[0], "weight", None)
    if weight is None or not _fits(weight) or weight.shape[0] % 16:
        return None
    x_1TM = _trial(1, 3, weight.shape[1])
    same = _alike(module(x_1TM), _mlp(module, module.forward, x_1TM))
    return partial(_mlp, module, module.forward) if same else None


def _mlp(module: Any, unfused: Callable[..., Tensor], x: Tensor) -> Tensor:
    if not _fits(x):
        return unfused(x)
    result: Tensor = module.down_proj(kernels.silu_product(module.gate_proj(x), module.up_proj(x)))
    return result


def _fused_attention(module: Any) -> Callable[..., Any] | None:
    forward: Any = type(module).forward
    # A plain function without a closure can be given another function of that name, and nobody else's changes.
    if not isinstance(forward, FunctionType) or forward.__closure__ or hasattr(forward, "__wrapped__"):
        return None
    plain, size = forward.__globals__.get(_ROTATION), getattr(module, "head_dim", None)
    if plain is None or _ROTATION not in forward.__code__.co_names or not isinstance(size, int) or size % 32:
        return None
    q, k, cosines, sines = (_trial(*shape, size) for shape in ((1, 3, 5), (1, 1, 5), (1, 5), (1, 5)))
    try:
        expected = plain(q, k, cosines, sines)
    except (TypeError, RuntimeError):  # it rotates something else
        return None
    if not all(
        torch.equal(one, other) for one, other in zip(expected, _rotation(plain, q, k, cosines, sines), strict=True)
    ):
        return None
    names = {**forward.__globals__, _ROTATION: partial(_rotation, plain)}
    fused = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__)
    fused.__kwdefaults__ = forward.__kwdefaults__
    return partial(fused, module)


def _rotation(
    plain: Callable[..., Any], q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any
) -> Any:
    whole = cos.shape == sin.shape == (1, q.shape[2], q.shape[3]) and len(q) == 1
    if args or kwargs or not whole or not all(map(_fits, (q, k, cos, sin))):
        return plain(q, k, cos, sin, *args, **kwargs)
    angles = (cos[0].contiguous(), sin[0].contiguous())
    return kernels.rotated(q[0], *angles)[None], kernels.rotated(k[0], *angles)[None]


def _trial(*shape: int) -> Tensor:
    # A generator of its own: whoever has set a seed gets the numbers that follow it.
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).bfloat16()


def _fits(tensor: Tensor) -> bool:
    return tensor.dtype == torch.bfloat16 and tensor.device.type == "cpu"


def _alike(one: Tensor, other: Tensor) -> bool:
    # Two roundings to 8 bits apart.
    return one.shape == other.shape and torch.allclose(one, other, rtol=2**-6, atol=2**-6 * float(one.abs().mean()))
