"""A model small enough to train inside a test, and a tokenizer for it. Nothing is downloaded."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from gateway.small_tokenizer import small_tokenizer


def tiny_tokenizer():
    """A byte-level tokenizer with a ChatML template."""
    return small_tokenizer()


def tiny_model(
    vocabulary: int = 300, *, seed: int = 0, layers: int = 2, width: int = 48, head_size: int = 8
) -> PreTrainedModel:
    """A randomly initialised Llama in float32, with grouped-query attention."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=head_size,
        max_position_embeddings=512,
        initializer_range=0.08,
    )
    return LlamaForCausalLM(config).float()
