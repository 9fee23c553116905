"""`export`: a merged model, an adapter for others, or a GGUF file, from one command."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ...errors import UserError
from ...files import read_json, reading
from ...metrics import ConsoleLogger
from ...policy import ADAPTER_CONFIG, refuse_non_finite, resolve_model
from ..models import adapter_weights
from .base import find_source, found_adapter, portable_name
from .gguf import convert, find_converter
from .merged_model import carry_run_file, merge_into
from .settings import ExportSettings
from .target import publish, size_of, target_folder

_ADAPTERS = "adapters"


def export(settings: ExportSettings) -> dict[str, Any]:
    """Write what the settings ask for and return what was done.

    Raises:
        UserError: a setting cannot work; nothing was published.
    """
    if settings.wanted == "adapter":
        return _export_adapters(settings)
    if settings.wanted == "gguf":
        return _export_gguf(settings)
    source = find_source(settings.model, settings.adapters, _ADAPTERS)
    with target_folder(settings.output_dir, settings.adapters[-1], "-merged", overwrite=settings.overwrite) as target:
        return merge_into(source, target, settings)


def _export_adapters(settings: ExportSettings) -> dict[str, Any]:
    """Write one adapter as the folder itself, several as folders in it, by their names."""
    started = time.monotonic()
    folders = [found_adapter(path, _ADAPTERS) for path in settings.adapters]
    if not folders:
        raise UserError("give the folder of a trained adapter", setting=_ADAPTERS)
    names = [path.expanduser().absolute().name for path in settings.adapters]
    if len(set(names)) < len(names):
        raise UserError(
            f"two adapters have folders of one name, {names[-1]}: export them one by one", setting=_ADAPTERS
        )
    written: list[dict[str, Any]] = []

    def write(folder: Path) -> None:
        for name, source in zip(names, folders, strict=True):
            own = folder if len(folders) == 1 else folder / name
            own.mkdir(exist_ok=True)
            written.append({"name": name, **write_adapter(source, own, settings)})

    with target_folder(settings.output_dir, settings.adapters[-1], "-adapter", overwrite=settings.overwrite) as target:
        publish(target, write)
    return {
        "output_dir": str(target),
        "format": "adapter",
        "adapters": written,
        "bytes": size_of(target),
        "seconds": time.monotonic() - started,
    }


def _export_gguf(settings: ExportSettings) -> dict[str, Any]:
    started = time.monotonic()
    converter = find_converter(settings.converter)
    if not settings.adapters and settings.model is None:
        raise UserError("give a trained adapter, or a whole model as `model`", setting=_ADAPTERS)
    named = settings.adapters[-1] if settings.adapters else Path(settings.model or "")
    beside = named.expanduser().absolute()
    summary: dict[str, Any] = {}

    def write(folder: Path) -> None:
        with tempfile.TemporaryDirectory(prefix=".merge-", dir=folder.parent) as work:
            if settings.adapters:
                merged = Path(work) / beside.name
                source = find_source(settings.model, settings.adapters, _ADAPTERS)
                summary["merged"] = merge_into(source, merged, settings)
            else:
                merged = Path(resolve_model(settings.model or ""))
            with ConsoleLogger() as progress:
                progress.phase("converting to GGUF")
                summary.update(convert(converter, merged, folder, beside.name, settings.outtype))

    with target_folder(settings.output_dir, beside, "-gguf", overwrite=settings.overwrite) as target:
        publish(target, write)
    return {
        "output_dir": str(target),
        "format": "gguf",
        "bytes": size_of(target),
        **summary,
        "seconds": time.monotonic() - started,
    }


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
    with reading(source / ADAPTER_CONFIG, setting="adapter"):
        config = read_json(source / ADAPTER_CONFIG)
    config["base_model_name_or_path"] = portable_name(
        settings.base_name or settings.model or config.get("base_model_name_or_path") or ""
    )
    config["inference_mode"] = True
    weights = adapter_weights(source)
    refuse_non_finite(weights, source, setting="adapter")
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
