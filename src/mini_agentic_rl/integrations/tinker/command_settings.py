"""The settings of the command `tinker`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from ...config import Settings, restated
from ...gateway import ServerSettings
from ...http import RequestLimits
from ...policy import EngineSettings, LearnerSettings, ModelSettings
from ...trainer import RunSettings
from .settings import ClientSettings


class TinkerSettings(Settings):
    """The settings of `tinker`."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "server.port": 8200,
        "server.drain_seconds": 5.0,
        # Clients send whole batches.
        "limits.max_body_bytes": 64 * 2**20,
    }
    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        "Model": ("load.*", "served_names", "client_tokenizer"),
        "Clients": ("output_dir", "clients.*"),
        "Memory": ("learner.max_batch_tokens", "learner.checkpointing", "engine.cache_mib", "engine.max_waiting"),
        "Limits of requests": ("limits.*",),
        "Server": ("server.*",),
    }

    output_dir: Path = restated(
        RunSettings,
        "output_dir",
        Path("outputs/tinker"),
        "Folder of what clients save, found again by the next server.",
    )
    served_names: list[str] = Field(default=[])
    """Further names that clients may call the model, as a name that a recipe knows; give it several times for several.
    It is always known by its own name and by its folder."""
    client_tokenizer: str | None = None
    """Name or folder that clients load the tokenizer from; by default the model's folder on this computer, or its
    Hugging Face id."""

    load: ModelSettings = ModelSettings()
    clients: ClientSettings = ClientSettings()
    learner: LearnerSettings = LearnerSettings()
    engine: EngineSettings = EngineSettings()
    limits: RequestLimits = RequestLimits()
    server: ServerSettings = ServerSettings()
