"""Layers of transformers and peft that compute in fewer passes; the modules stay in place and keep their weights.

`fuse_layers`: norms, gated products and rotary embeddings in C++ (kernels/). transformers computes each in several
operations, and every one of them reads and writes tensors of the layer's size. A module is fused only if a trial with
random numbers gives the same results, and falls back for other types, devices and trained norms.

`fuse_lora`: a linear layer with its low-rank adapter as one operation, y = W x + s B A x (LoRA; Hu et al. 2021). peft
computes the two terms separately, with five passes over tensors of the layer's size, and in the backward pass with
products whose layout is slow in BLAS. Here the second term is added into the first in place, and only the input
and its low-rank image are kept for the backward pass. Matrices of another type than the input's are rounded to it:
float32 adapters around 16-bit layers cost no copies of the input.
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
"""Name of the function in transformers that rotates queries and keys."""


def fuse_layers(base: nn.Module) -> set[nn.Module]:
    """Fuse norms, gated products and rotary embeddings of `base`; return the fused modules."""
    fused = set()
    learning = [module for module in base.modules() if module.training]
    base.eval()  # dropout would make the comparison fail
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
    x_TM = _trial(weight.dtype, 3, weight.numel())
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
    x_1TM = _trial(weight.dtype, 1, 3, weight.shape[1])
    same = _alike(module(x_1TM), _mlp(module, module.forward, x_1TM))
    return partial(_mlp, module, module.forward) if same else None


def _mlp(module: Any, unfused: Callable[..., Tensor], x: Tensor) -> Tensor:
    if not _fits(x):
        return unfused(x)
    result: Tensor = module.down_proj(kernels.silu_product(module.gate_proj(x), module.up_proj(x)))
    return result


def _fused_attention(module: Any) -> Callable[..., Any] | None:
    forward: Any = type(module).forward
    if isinstance(forward, FunctionType) and "old_name" in forward.__code__.co_freevars:
        forward = forward.__wrapped__  # type: ignore[attr-defined]  # transformers' decorator of a renamed argument
    # A copy of a plain function with other globals: the module of transformers stays as it is.
    if not isinstance(forward, FunctionType) or forward.__closure__ or hasattr(forward, "__wrapped__"):
        return None
    plain, size = forward.__globals__.get(_ROTATION), getattr(module, "head_dim", None)
    if plain is None or _ROTATION not in forward.__code__.co_names or not isinstance(size, int) or size % 32:
        return None
    dtype = next(module.parameters()).dtype
    q, k, cosines, sines = (_trial(dtype, *shape, size) for shape in ((1, 3, 5), (1, 1, 5), (1, 5), (1, 5)))
    try:
        expected = plain(q, k, cosines, sines)
    except (TypeError, RuntimeError):  # it rotates something else
        return None
    rotated = _rotation(plain, q, k, cosines, sines)
    if not all(torch.equal(theirs, ours) for theirs, ours in zip(expected, rotated, strict=True)):
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


def _trial(dtype: torch.dtype, *shape: int) -> Tensor:
    # A separate generator leaves the caller's random numbers as they are.
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def _fits(tensor: Tensor) -> bool:
    return kernels.usable(tensor.dtype, tensor.device)


def _alike(theirs: Tensor, ours: Tensor) -> bool:
    # Two roundings to 8 bits; in float32 sums are added in another order.
    tolerance = 2**-6 if ours.dtype == torch.bfloat16 else 2**-16
    margin = tolerance * float(theirs.abs().mean())
    return theirs.shape == ours.shape and torch.allclose(theirs, ours, rtol=tolerance, atol=margin)


def fuse_lora(base: nn.Module) -> None:
    """Let every LoRA layer of `base` compute in one operation where it can."""
    from peft.tuners.lora.layer import Linear

    for layer in base.modules():
        if type(layer) is Linear:
            layer.forward = partial(_forward, layer)


def _forward(layer: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    adapter = _plain_adapter(layer, x)
    if adapter is None or args or kwargs:
        result: Tensor = type(layer).forward(layer, x, *args, **kwargs)
        return result
    a_RK, b_NR, scale = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight, layer.scaling[adapter]
    if torch.is_grad_enabled():
        weight_NK, bias_N = layer.base_layer.weight, layer.base_layer.bias
        fused: Tensor = _LoraLinear.apply(x, weight_NK, bias_N, a_RK, b_NR, scale)  # type: ignore[no-untyped-call]
        return fused
    y: Tensor = layer.base_layer(x)
    _add(x.reshape(-1, x.shape[-1]), a_RK, b_NR, scale, y.view(-1, y.shape[-1]))
    return y


def _add(x_TK: Tensor, a_RK: Tensor, b_NR: Tensor, scale: float, y_TN: Tensor) -> tuple[Tensor, Tensor]:
    """Add s B A x to y in place; return x as it was read, and A x."""
    if kernels.can_adapt(x_TK, a_RK, b_NR):
        x_TK = x_TK.contiguous()
        return x_TK, kernels.add_adapted(x_TK, a_RK, b_NR, scale, y_TN)
    low_TR = x_TK @ a_RK.T.to(x_TK.dtype)
    y_TN.addmm_(low_TR, b_NR.T.to(x_TK.dtype), alpha=scale)
    return x_TK, low_TR


def _plain_adapter(layer: Any, x: Tensor) -> str | None:
    """Return the active adapter if it is a single plain one on a linear layer of the input's type, else None."""
    if layer.disable_adapters or layer.merged or type(layer.base_layer) is not nn.Linear:
        return None
    active = [name for name in layer.active_adapters if name in layer.lora_A]
    if len(active) != 1 or active[0] in layer.lora_variant:
        return None
    name: str = active[0]
    a, b = layer.lora_A[name], layer.lora_B[name]
    dropout = layer.lora_dropout[name]
    if a.bias is not None or b.bias is not None or (dropout.training and type(dropout) is not nn.Identity):
        return None
    return name if x.dtype == layer.base_layer.weight.dtype else None


class _LoraLinear(torch.autograd.Function):
    """The fused operation. The weight and the bias are frozen; input and adapter get gradients."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight_NK: Tensor, bias_N: Tensor | None, a_RK: Tensor, b_NR: Tensor, scale: float
    ) -> Tensor:
        x_TK = x.reshape(-1, x.shape[-1])
        y_TN = nn.functional.linear(x_TK, weight_NK, bias_N)
        ctx.compiled = kernels.can_adapt(x, a_RK, b_NR)
        x_TK, low_TR = _add(x_TK, a_RK, b_NR, scale, y_TN)
        ctx.save_for_backward(x_TK, weight_NK, a_RK, b_NR, low_TR)
        ctx.scale = scale
        ctx.shape = x.shape
        return y_TN.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, Tensor, Tensor, None]:
        x_TK, weight_NK, a_RK, b_NR, low_TR = ctx.saved_tensors
        grad_TN = grad.reshape(-1, grad.shape[-1])
        grad_x: Tensor | None = None
        if ctx.compiled:
            grad_TN = grad_TN.contiguous()
            if ctx.needs_input_grad[0]:
                grad_x = grad_TN @ weight_NK
            grad_a_RK, grad_b_NR = kernels.adapted_gradients(x_TK, a_RK, b_NR, ctx.scale, low_TR, grad_TN, grad_x)
            return None if grad_x is None else grad_x.view(ctx.shape), None, None, grad_a_RK, grad_b_NR, None
        # Contiguous: BLAS is slow on a matrix whose short axis is strided.
        low_grad_TR = grad_TN @ b_NR.T.contiguous().to(grad.dtype).T
        if ctx.needs_input_grad[0]:
            grad_TK = grad_TN @ weight_NK
            grad_x = grad_TK.addmm_(low_grad_TR, a_RK.to(grad.dtype), alpha=ctx.scale).view(ctx.shape)
        # Scale the small matrices, not those of the layer's size.
        grad_a_RK = (low_grad_TR.T @ x_TK).to(a_RK.dtype).mul_(ctx.scale)
        grad_b_NR = (low_TR.T @ grad_TN).to(b_NR.dtype).mul_(ctx.scale).T
        return grad_x, None, None, grad_a_RK, grad_b_NR, None
