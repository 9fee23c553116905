"""The settings of the commands that serve a store and look into one. Each field is one option."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic.config import JsonDict

from ..config import Settings
from ..types import RolloutMode, RolloutStatus

Backend = Literal["memory", "sqlite", "postgres", "mongo"]

_SERVER: JsonDict = {"panel": "Server"}
_KEEP: JsonDict = {"panel": "What it keeps the rollouts in"}
_WHERE: JsonDict = {"panel": "Store"}
_WHICH: JsonDict = {"panel": "Which"}
_JSON: JsonDict = {"panel": "Output", "option": "--json"}


class ServeStoreSettings(Settings):
    """What `store` does."""

    host: str = Field(default="127.0.0.1", json_schema_extra=_SERVER)
    """Address to listen on; 0.0.0.0 lets other machines in, and then needs --api-key."""
    port: int = Field(default=4747, ge=0, le=65535, json_schema_extra=_SERVER)
    """Port to listen on; 0 takes a free one."""
    api_key: str | None = Field(default=None, json_schema_extra=_SERVER)
    """Key that runners and algorithms must send; by default the environment variable AGL_API_KEY."""

    backend: Backend | None = Field(default=None, json_schema_extra=_KEEP)
    """By default what --path or --url says, and memory without them: that forgets everything when it ends."""
    path: Path | None = Field(default=None, json_schema_extra=_KEEP)
    """SQLite file; it is made if it is not there, and taken up again if it is."""
    url: str | None = Field(default=None, json_schema_extra=_KEEP)
    """Database: postgresql://user:password@host/database or mongodb://host/database."""


class StoreSettings(Settings):
    """Which store a command looks into."""

    store: str | None = Field(default=None, json_schema_extra=_WHERE)
    """A run folder, a .db file, postgresql://…, mongodb://… or http://…; by default the store server at AGL_SERVER_HOST
    and AGL_SERVER_PORT, or at 127.0.0.1:4747."""
    api_key: str | None = Field(default=None, json_schema_extra=_WHERE)
    """Key of the store server; by default the environment variable AGL_API_KEY."""


class RolloutListSettings(StoreSettings):
    """What `rollouts list` shows."""

    status: list[RolloutStatus] = Field(default=[], json_schema_extra=_WHICH)
    """Only rollouts in this status; give it several times for several."""
    mode: RolloutMode | None = Field(default=None, json_schema_extra=_WHICH)
    """Only rollouts of this mode."""
    limit: int = Field(default=20, ge=-1, json_schema_extra=_WHICH)
    """At most this many, the newest first; -1 for all."""
    json_output: bool = Field(default=False, json_schema_extra=_JSON)
    """Print a JSON list of rollouts, each with its latest attempt."""


class RolloutShowSettings(StoreSettings):
    """What `rollouts show` shows."""

    rollout: str = Field(json_schema_extra={"argument": True})
    """Id of the rollout, or a part of it that no other has."""
    json_output: bool = Field(default=False, json_schema_extra=_JSON)
    """Print the rollout as JSON, with its attempts, its reward and the number of spans of each attempt."""


class RolloutRetrySettings(StoreSettings):
    """What `rollouts retry` queues again."""

    rollouts: list[str] = Field(default=[], json_schema_extra={"argument": True})
    """Ids of failed rollouts, or parts of them; without any: every failed rollout not yet retried."""
    json_output: bool = Field(default=False, json_schema_extra=_JSON)
    """Print the new rollouts as a JSON list."""


class SpanShowSettings(StoreSettings):
    """What `spans show` shows."""

    rollout: str = Field(json_schema_extra={"argument": True})
    """Id of the rollout, or a part of it that no other has."""
    attempt: str = Field(default="latest", json_schema_extra=_WHICH)
    """`latest`, `all`, the number of an attempt, or its id."""
    json_output: bool = Field(default=False, json_schema_extra=_JSON)
    """Print the spans as a JSON list, with all their attributes."""


class WorkerSettings(StoreSettings):
    """What `workers` shows."""

    json_output: bool = Field(default=False, json_schema_extra=_JSON)
    """Print the workers as a JSON list."""
