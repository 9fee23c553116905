"""Models of known shapes with random weights, for machines that reach no hub: speed and memory need no training."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from workload import TEMPLATE

SHAPES = {
    "toy": (512, 64, 128, 2, 4, 2),
    "0.5B": (151_936, 896, 4864, 24, 14, 2),
    "1.5B": (151_936, 1536, 8960, 28, 12, 2),
}
"""Qwen2.5's shapes by their size, and one small enough for a test: vocabulary, hidden size, inner size of the
feed-forward layers, layers, attention heads, heads of keys and values."""


def make_model(shape: str, folder: Path) -> str:
    """Write a model of `shape` with a byte-level tokenizer into `folder`, in bfloat16; return the folder's name."""
    vocabulary, width, inner, layers, heads, kv_heads = SHAPES[shape]
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        initializer_range=0.05,
    )
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = Qwen2ForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of one token a byte, with ChatML's marks."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in ("<|im_start|>", "<|im_end|>")])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>", chat_template=TEMPLATE
    )
