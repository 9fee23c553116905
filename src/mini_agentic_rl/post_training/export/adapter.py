"""An adapter alone, as plain peft, vLLM and others read it: its two files and the tokenizer, not the run around it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from peft import load_peft_weights
from safetensors.torch import save_file

from ...policy import ADAPTER_CONFIG
from .base import portable_name
from .merge import carry_run_file
from .settings import ExportSettings
from .target import size_of

WEIGHTS = "adapter_model.safetensors"

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)


def write_adapter(source: Path, folder: Path, settings: ExportSettings) -> dict[str, Any]:
    """Write the adapter in `source` into an empty folder; tell what it calls its base, and its size."""
    config = json.loads((source / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = portable_name(
        settings.base_name or settings.model or config.get("base_model_name_or_path") or ""
    )
    config["inference_mode"] = True
    weights = load_peft_weights(str(source), device="cpu")
    if settings.dtype != "auto":
        dtype = getattr(torch, settings.dtype)
        weights = {name: tensor.to(dtype) for name, tensor in weights.items()}
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / WEIGHTS, {"format": "pt"})
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    carry_run_file([source], folder)
    return {
        "base": config["base_model_name_or_path"],
        "rank": config.get("r"),
        "matrices": len(weights),
        "bytes": size_of(folder),
    }
