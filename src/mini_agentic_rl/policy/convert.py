"""From a GGUF file to a folder of bf16 safetensors that `from_pretrained` reads. Run as a program, in a process of its
own: `python -m mini_agentic_rl.policy.convert MODEL.gguf FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer


def convert(gguf: Path, target: Path) -> None:
    """Write model and tokenizer to `target`.

    A GGUF-loaded model keeps a quantisation config that cannot be saved, so its weights move to a fresh model.
    """
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in loaded.state_dict().items()}
    settings = {
        key: value
        for key, value in loaded.config.to_dict().items()
        if key not in ("quantization_config", "_name_or_path", "transformers_version", "dtype", "torch_dtype")
    }
    model_type = settings.pop("model_type")
    config = AutoConfig.for_model(model_type, **settings)
    fresh = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    fresh.load_state_dict(weights)
    fresh.save_pretrained(target)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(target)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
