"""`export`: a merged model, an adapter for others, or a GGUF file, from one command."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...metrics import ConsoleLogger
from ...policy import resolve_model
from .adapter import write_adapter
from .base import find_source, found_adapter
from .gguf import convert, find_converter
from .merge import merge_into
from .settings import ExportSettings
from .target import publish, size_of, target_folder

_ADAPTERS = "--adapters"


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
    target = target_folder(settings.output_dir, settings.adapters[-1], "-merged", overwrite=settings.overwrite)
    return merge_into(source, target, settings)


def _export_adapters(settings: ExportSettings) -> dict[str, Any]:
    """One adapter becomes the folder itself, several become folders in it, by their names."""
    started = time.monotonic()
    folders = [found_adapter(path, _ADAPTERS) for path in settings.adapters]
    if not folders:
        raise UserError(f"{_ADAPTERS} is missing: give the folder of a trained adapter")
    names = [path.expanduser().absolute().name for path in settings.adapters]
    if len(set(names)) < len(names):
        raise UserError(f"{_ADAPTERS}: two adapters have folders of one name, {names[-1]}: export them one by one")
    target = target_folder(settings.output_dir, settings.adapters[-1], "-adapter", overwrite=settings.overwrite)
    written: list[dict[str, Any]] = []

    def write(folder: Path) -> None:
        for name, source in zip(names, folders, strict=True):
            place = folder if len(folders) == 1 else folder / name
            place.mkdir(exist_ok=True)
            written.append({"name": name, **write_adapter(source, place, settings)})

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
        raise UserError(f"{_ADAPTERS} is missing: give a trained adapter, or a whole model with --model")
    named = settings.adapters[-1] if settings.adapters else Path(settings.model or "")
    beside = named.expanduser().absolute()
    target = target_folder(settings.output_dir, beside, "-gguf", overwrite=settings.overwrite)
    summary: dict[str, Any] = {}

    def write(folder: Path) -> None:
        with tempfile.TemporaryDirectory(prefix=".merge-", dir=target.parent) as work:
            if settings.adapters:
                merged = Path(work) / beside.name
                source = find_source(settings.model, settings.adapters, _ADAPTERS)
                summary["merged"] = merge_into(source, merged, settings)
            else:
                merged = Path(resolve_model(settings.model or ""))
            with ConsoleLogger() as progress:
                progress.phase("converting to GGUF")
                summary.update(convert(converter, merged, folder, beside.name, settings.outtype))

    publish(target, write)
    return {
        "output_dir": str(target),
        "format": "gguf",
        "bytes": size_of(target),
        **summary,
        "seconds": time.monotonic() - started,
    }
