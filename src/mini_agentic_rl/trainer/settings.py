"""Settings of runners, of the run folder and of the trace export; the store that exports traces."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

from pydantic import Field

from ..config import COMMAS, Settings
from ..metrics import LoggerName
from ..plugins import load_part

if TYPE_CHECKING:
    from ..store import LightningStore

StrategyName: TypeAlias = Literal["shm", "cs", "ray"]
"""Name of an execution strategy."""


class RunnerSettings(Settings):
    """Settings of the runners, which run the agent."""

    n_runners: int = Field(default=64, ge=1)
    """Rollouts that run at the same time, at most."""
    strategy: StrategyName | None = None
    """Place of the runners: `shm` in this process, `cs` in processes of their own (4 of them, unless `n_runners` says
    otherwise), `ray` as actors of a Ray cluster (needs the `ray` extra). By default `shm`, or `cs` where one of
    AGL_CURRENT_ROLE, AGL_MANAGED_STORE, AGL_SERVER_HOST and AGL_SERVER_PORT is set."""


class RunSettings(Settings):
    """The folder of a run, and where its metrics go."""

    output_dir: Path = Path("outputs/run")
    """Folder of the run: configuration, metrics, adapter, checkpoints, rollouts, report."""
    console: bool = True
    """Show progress and metrics on the console."""
    loggers: Annotated[list[LoggerName], COMMAS] = Field(default=[])
    """Services that get metrics besides the console and `metrics.jsonl`, also `swanlab`, `mlflow`, `trackio` or one of
    a plugin; several with commas, or given several times."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Port at which Prometheus reads the numbers of the run, as /metrics; 0 takes a free one. By default none."""
    metrics_host: str = "127.0.0.1"
    """Address of that port; 0.0.0.0 lets other computers read the numbers, without a key."""
    resume: bool = False
    """Continue the run in the output folder from its last checkpoint."""
    overwrite: bool = False
    """Replace the run in the output folder."""


_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class TraceExportSettings(Settings):
    """Spans that are sent to other tools."""

    otlp: str | None = None
    """Address that gets the spans of every attempt over OTLP (http/protobuf), named as OpenTelemetry's conventions for
    generative AI have them, as http://localhost:6006 for Phoenix; by default OTEL_EXPORTER_OTLP_ENDPOINT. Keys belong
    into OTEL_EXPORTER_OTLP_HEADERS."""
    otlp_messages: bool = True
    """Export messages, arguments of tools and their results."""
    otlp_tokens: bool = False
    """Export the token ids and log-probabilities of each call as well."""


@contextmanager
def exported(
    store: LightningStore, settings: TraceExportSettings, *, agent: str = "agent", run: Path | None = None
) -> Iterator[LightningStore]:
    """Yield the store, with an exporter in front of it where the settings or the environment name an address.

    Args:
        store: an open store of this process.
        agent: name of the agent.
        run: folder of the run.

    Raises:
        UserError: the address cannot be used.
    """
    if settings.otlp is None and not any(os.environ.get(name) for name in _VARIABLES):
        yield store
        return
    with load_part("otlp", setting="otlp").exported(store, settings, agent=agent, run=run) as exporting:
        yield exporting
