"""The weights: a Hugging Face model, its named LoRA adapters, and a version for each.

Sampling and learning both run through `hidden` and `logits`; the reference policy is the same weights with the adapter
off. A version counts the optimizer steps behind an adapter. Fixed adapters sample and never learn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..metrics import percent
from . import kernels
from .attention import ATTENTION_NAME, AttentionTables
from .errors import PolicyError
from .fused_layers import fuse_layers, fuse_lora
from .machine import ThreadCount
from .rank_group import RankGroup, ShardedBase
from .sampling_layers import DecoderStack, PackedLinears

DEFAULT_ADAPTER = "default"


class PolicyModel:
    """A causal language model whose attention goes through `AttentionTables`."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        peft_model: Any | None = None,
        adapters: Sequence[str] = (DEFAULT_ADAPTER,),
        fixed_adapters: Sequence[str] = (),
        shards: ShardedBase | None = None,
    ) -> None:
        """
        Args:
            model: the bare model (adapters may be injected).
            peft_model: peft's wrapper of it; None for full training.
            adapters: names of the adapters that are trained, the active one first.
            fixed_adapters: names of the others, which are only sampled with.
            shards: the base's layers if this rank holds a part of them; it then learns, and cannot sample.
        """
        self.base = model
        self.peft_model = peft_model
        self.shards = shards
        """The base's layers if they are sharded over the ranks."""
        self.ranks: RankGroup | None = None
        """The ranks that compute each pass together, a share of the trees each; None computes all of it here."""
        # Keys are cached by the engine; transformers would keep a second cache.
        self.base.config.use_cache = False
        self.base.set_attn_implementation(ATTENTION_NAME)
        self.backbone: nn.Module = getattr(model, model.base_model_prefix)
        head = model.get_output_embeddings()
        if head is None:
            raise PolicyError(
                f"{type(model).__name__} has no output head: choose a causal language model", setting="model"
            )
        self.head: nn.Module = head
        config = model.config.get_text_config()
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)
        # `logits` does what the models' own forward does: Cohere multiplies its logits, Granite divides them.
        self._logit_scale = float(getattr(config, "logit_scale", None) or 1.0)
        self._logit_scale /= float(getattr(config, "logits_scaling", None) or 1.0)
        self.layers: int = config.num_hidden_layers
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        self.head_size: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.context_length: int = config.max_position_embeddings
        self.vocab_size: int = config.vocab_size
        self.adapters = tuple(adapters)
        """Adapters that are trained; a request for the model's own name gets the first one."""
        self.versions: dict[str, int] = dict.fromkeys((*adapters, *fixed_adapters), 0)
        self._active: str | None = self.adapters[0]
        self.threads = ThreadCount()
        """Number of threads that compute with it on a CPU."""
        self.kernels: Literal["compiled", "torch"] = "torch"
        """Implementation of attention and of the operations between matrix products: C++ compiled here, or torch."""
        # A sharded layer cannot be compared (`fuse_layers`).
        if shards is None and kernels.usable(self.dtype, self.device, self.head_size):
            self.kernels = "compiled"
        fused = fuse_layers(self.base) if self.kernels == "compiled" else set[nn.Module]()
        # Both replace the layers' forward; PackedLinears falls back on the replaced one, so it comes last.
        if peft_model is not None:
            fuse_lora(self.base)
        self._packed = PackedLinears(self.base)
        sizes = (self.heads, self.kv_heads, self.head_size)
        self._stack = DecoderStack(self.backbone, fused, self._packed, sizes) if fused else None
        self.on_pause: Callable[[], None] | None = None
        """Called between two parts of a pass that learns or scores, where sampling may compute; None calls nothing.
        While it is set, the copies that sampling computes with are kept during learning."""

    @property
    def device(self) -> torch.device:
        """Device of the embeddings, where token ids have to be."""
        device: torch.device = self.base.get_input_embeddings().weight.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the hidden states."""
        dtype: torch.dtype = self.base.get_input_embeddings().weight.dtype
        return dtype

    @property
    def rank(self) -> int | None:
        """The largest rank of the adapters; None under full training."""
        if self.peft_model is None:
            return None
        return max(int(config.r) for config in self.peft_model.peft_config.values())

    def version(self, adapter: str | None) -> int:
        """Return the optimizer steps behind `adapter`; 0 for the base model."""
        return 0 if adapter is None else self.versions[adapter]

    def activate(self, adapter: str | None) -> None:
        """Let the next forward passes use `adapter`; None is the base model alone.

        Raises:
            PolicyError: there is no such adapter, or the weights are trained in full, without a base model.
        """
        if self.on_pause is None:
            self.unpack()
        else:
            self._packed.rest()
        if adapter == self._active:
            return
        if adapter is not None and adapter not in self.versions:
            raise PolicyError(f"no adapter named {adapter!r}; loaded: {', '.join(sorted(self.versions))}")
        if self.peft_model is None:
            raise PolicyError("the weights are trained in full, so there is no base model without the adapter")
        if adapter is None:
            self.peft_model.base_model.disable_adapter_layers()
        else:
            self.peft_model.base_model.enable_adapter_layers()
            self.peft_model.set_adapter(adapter)
        self._active = adapter

    def activate_for_sampling(self, adapter: str | None, *, at_once: bool = False) -> None:
        """Activate `adapter`, and sample with copies of the weights in a faster layout, if there is one.

        The copies are made at an adapter's second pass in a row, as alternating adapters would copy in each pass.
        `at_once` makes them at the first pass, so that no result depends on the pass before.
        """
        switched = adapter != self._active
        if switched:
            self.activate(adapter)
        if at_once or not switched:
            self._packed.pack(adapter)

    def unpack(self) -> None:
        """Free the copies, and compute with the weights themselves."""
        self._packed.release()
        if self._stack is not None:
            self._stack.release()

    @contextmanager
    def using(self, adapter: str | None) -> Iterator[None]:
        """Activate `adapter` for the duration of a block."""
        before = self._active
        self.activate(adapter)
        try:
            yield
        finally:
            self.activate(before)

    def pause(self) -> None:
        """Call `on_pause`, if it is set, between two parts of a pass."""
        if self.on_pause is not None:
            self.on_pause()

    @contextmanager
    def without_pauses(self) -> Iterator[None]:
        """Do not sample during a block that tries weights which may be reverted."""
        before = self.on_pause
        if before is not None:
            self.on_pause = lambda: None
        try:
            yield
        finally:
            self.on_pause = before

    @contextmanager
    def lent_to_sampling(self) -> Iterator[None]:
        """Let the engine sample within a pass that learns; restore adapter, training mode and layout afterwards."""
        active = self._active
        training = [module for module in self.base.modules() if module.training]
        for module in training:
            module.training = False
        try:
            yield
        finally:
            self.activate(active)
            for module in training:
                module.training = True

    @contextmanager
    def callable_by_others(self) -> Iterator[None]:
        """Let the trainer of another library use the model for the duration of a block.

        The model then takes padded batches and a mask, as in transformers, instead of attention tables.
        """
        config = self.base.config.get_text_config()
        # torch's fused attention has no softcap.
        squashes = getattr(config, "attn_logit_softcapping", None) is not None
        self.unpack()
        self.base.set_attn_implementation("eager" if squashes else "sdpa")
        try:
            yield
        finally:
            self.base.set_attn_implementation(ATTENTION_NAME)
            self.base.eval()

    @property
    def frozen_head(self) -> tuple[Tensor, float] | None:
        """Weight [V, M] and factor of the logits if the head is a frozen linear layer, else None."""
        head: Any = self.head
        if type(self.head) is not nn.Linear or head.bias is not None or self._softcap is not None:
            return None
        return None if head.weight.requires_grad else (head.weight, self._logit_scale)

    def hidden(self, tokens_T: Tensor, positions_T: Tensor, tables: AttentionTables) -> Tensor:
        """Return the last hidden states [T, M] of T packed tokens."""

        def by_modules() -> Tensor:
            output = self.backbone(
                input_ids=tokens_T[None], position_ids=positions_T[None], use_cache=False, attention_tables=tables
            )
            hidden: Tensor = output.last_hidden_state[0]
            return hidden

        hidden_TM = None if self._stack is None else self._stack.hidden(tokens_T, positions_T, tables, by_modules)
        return by_modules() if hidden_TM is None else hidden_TM

    def logits(self, hidden_NM: Tensor) -> Tensor:
        """Return logits [N, V] of N hidden states."""
        logits: Tensor = self.head(hidden_NM)
        if self._logit_scale != 1.0:
            logits = logits * self._logit_scale
        if self._softcap is not None:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits

    def trainable(self, adapter: str = DEFAULT_ADAPTER) -> list[nn.Parameter]:
        """Return the trained parameters: the adapter's matrices, or every weight under full training.

        Raises:
            PolicyError: there is no such adapter, or it is a fixed one.
        """
        if self.peft_model is None:
            return [p for p in self.base.parameters() if p.requires_grad]
        self.activate(adapter)
        if adapter not in self.adapters:
            raise PolicyError(f"the adapter {adapter!r} is fixed; those that are trained: {', '.join(self.adapters)}")
        matrix = re.compile(rf"\.lora_\w+\.{re.escape(adapter)}(\.|$)")
        return [p for name, p in self.base.named_parameters() if matrix.search(name)]

    def enable_checkpointing(self) -> None:
        """In training mode, recompute each layer's activations in the backward pass instead of keeping them."""
        how = {"use_reentrant": False}
        if hasattr(self.base, "activation_checkpointing_enable"):  # as newer versions call it
            self.base.activation_checkpointing_enable(how)
        else:
            self.base.gradient_checkpointing_enable(how)


@dataclass(frozen=True)
class ParameterCount:
    """Numbers of parameters, including adapters."""

    trained: int
    total: int

    def __str__(self) -> str:
        share = percent(self.trained / max(1, self.total), 2)
        return f"training {self.trained:,} of {self.total:,} parameters ({share})"


def count_parameters(model: nn.Module, trained: Iterable[nn.Parameter] | None = None) -> ParameterCount:
    """Return the numbers of a model's parameters.

    Args:
        trained: the trained ones; None takes all that need a gradient.
    """
    parameters = list(model.parameters())
    learnt = [parameter for parameter in parameters if parameter.requires_grad] if trained is None else trained
    return ParameterCount(sum(map(_size, learnt)), sum(map(_size, parameters)))


def _size(parameter: nn.Parameter) -> int:
    """Return the number of weights; 4-bit weights are packed."""
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else int(state.shape.numel())
