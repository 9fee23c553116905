"""Settings of the server of the Tinker API, apart from it: reading them needs no torch."""

from __future__ import annotations

from pydantic import Field

from ...config import Settings


class ClientSettings(Settings):
    """Bounds on what clients hold at once."""

    max_trained_adapters: int = Field(default=8, ge=1)
    """Adapters that are trained at the same time, over all clients; one more is refused until a client ends."""
    max_rank: int = Field(default=128, ge=1)
    """Largest rank that a client may ask for."""
    adapter_alpha: int = Field(default=32, ge=1)
    """Scale of the clients' adapters: their output is multiplied by it and divided by the rank, which a client
    chooses."""
    sampler_slots: int = Field(default=4, ge=1)
    """Saved weights that are sampled with at the same time; requests for more wait."""
    sampler_share: float = Field(default=0.5, ge=0, lt=1)
    """Sampling's share of the time while a client's data are learnt from, where anybody samples; 0 lets sampling wait
    for the end of each `forward_backward`, and gives its key/value cache back meanwhile."""
    max_snapshots: int = Field(default=64, ge=1)
    """Weights without a name that are kept to sample with; beyond it those that were used longest ago are dropped."""
    max_open_requests: int = Field(default=4096, ge=1)
    """Requests of one client whose results it has not fetched yet; more are refused with 429."""
    max_open_mib: int = Field(default=512, ge=1)
    """MiB of the data in such requests of one client; more are refused with 429."""
    max_clients: int = Field(default=256, ge=1)
    """Clients at once; more are refused with 429."""
    session_seconds: float = Field(default=900.0, gt=0)
    """Seconds without a word after which a client counts as gone: its adapters are dropped, what it saved stays."""
    retrieve_seconds: float = Field(default=20.0, gt=0, le=40)
    """Seconds that an answer waits for a result before the client is told to ask again."""
    gap_seconds: float = Field(default=60.0, gt=0)
    """Seconds that a client's requests wait for one before them that has not arrived."""
