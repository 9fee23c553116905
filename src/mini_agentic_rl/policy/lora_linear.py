"""A linear layer with its low-rank adapter as one operation: y = W x + s B A x (LoRA; Hu et al. 2021).

peft computes the two terms apart, with five passes over tensors of the layer's size and in the backward pass with
products whose short side lies the wrong way for BLAS. Here the second term is added into the first where it stands, and
nothing is kept for the backward pass but the input and its low-rank image. peft's modules stay in place and keep the
weights; only how they compute changes, and only where they hold one plain adapter. Matrices of another type than the
input's are rounded to it: that of float32 adapters around 16-bit layers costs no copies of the input.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from . import kernels


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
    """Return the one active adapter, if the layer is a linear one of the input's type with nothing else to it."""
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
        # Contiguous, because BLAS is slow on a matrix whose short side lies across memory.
        low_grad_TR = grad_TN @ b_NR.T.contiguous().to(grad.dtype).T
        if ctx.needs_input_grad[0]:
            grad_TK = grad_TN @ weight_NK
            grad_x = grad_TK.addmm_(low_grad_TR, a_RK.to(grad.dtype), alpha=ctx.scale).view(ctx.shape)
        # The scale goes onto the small matrices, not onto those of the layer's size.
        grad_a_RK = (low_grad_TR.T @ x_TK).to(a_RK.dtype).mul_(ctx.scale)
        grad_b_NR = (low_TR.T @ grad_TN).to(b_NR.dtype).mul_(ctx.scale).T
        return grad_x, None, None, grad_a_RK, grad_b_NR, None
