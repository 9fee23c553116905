"""Settings of the Tinker server, and the errors it answers with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from pydantic import Field

from ...config import Settings, restated
from ...gateway import ServerSettings
from ...http import RequestLimits
from ...policy import EngineSettings, LearnerSettings, ModelSettings
from ...trainer import RunSettings


class ClientSettings(Settings):
    """Limits of clients."""

    max_trained_adapters: int = Field(default=8, ge=1)
    """Most adapters in training at once, over all clients; one more is refused until a client ends."""
    max_rank: int = Field(default=128, ge=1)
    """Largest LoRA rank of a client."""
    adapter_alpha: int = Field(default=32, ge=1)
    """LoRA alpha of the clients' adapters: their output is scaled by alpha / rank; the client chooses the rank."""
    sampler_slots: int = Field(default=4, ge=1)
    """Most saved weights that are sampled with at once; requests for others wait."""
    sampler_share: float = Field(default=0.5, ge=0, lt=1)
    """Share of the time for sampling during a `forward_backward`; 0 makes sampling wait for its end, and frees the
    key/value cache meanwhile."""
    max_snapshots: int = Field(default=64, ge=1)
    """Most unnamed weights kept to sample with; beyond it the least recently used are dropped."""
    max_open_requests: int = Field(default=4096, ge=1)
    """Most requests of one client with unfetched results; more are refused with 429."""
    max_open_mib: int = Field(default=512, ge=1)
    """Most MiB of data in these requests of one client; more are refused with 429."""
    max_clients: int = Field(default=256, ge=1)
    """Most clients at once; more are refused with 429."""
    session_seconds: float = Field(default=900.0, gt=0)
    """Seconds without a request after which a session ends: its adapters are dropped, its checkpoints stay."""
    retrieve_seconds: float = Field(default=20.0, gt=0, le=40)
    """Seconds that a poll waits for a result before the client has to poll again."""
    gap_seconds: float = Field(default=60.0, gt=0)
    """Seconds that a client's requests wait for an earlier one that has not arrived."""


# The settings of the command `tinker`.


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
        "Folder of the clients' checkpoints; a later server on the same folder has them too.",
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


# Errors of promises: the client raises them when it waits for the result.


GONE: Final = (
    "these weights are gone: their checkpoint was removed, or they had no name and were not used for long "
    "(max_snapshots)"
)
UNREADABLE: Final = "these weights cannot be read: they are damaged, or were overwritten meanwhile; its log says which"


class RefusedError(Exception):
    """A request cannot be carried out; `category` is the side at fault."""

    def __init__(self, text: str, *, category: Literal["user", "server"] = "user") -> None:
        super().__init__(text)
        self.category = category


class NoWeightsError(RefusedError):
    """There are no weights under a path of a client, or they were removed."""
