"""The export of traces to other tools: its settings, and the store that sends what passes.

The sending itself is the optional part `otlp`, loaded where an address is set.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ..config import Settings
from ..plugins import load_part
from ..store import LightningStore

_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class TraceExportSettings(Settings):
    """Spans that are sent to other tools."""

    otlp: str | None = None
    """Address that gets the spans of every attempt over OTLP (http/protobuf), named as OpenTelemetry's conventions for
    generative AI have them, as http://localhost:6006 for Phoenix; by default OTEL_EXPORTER_OTLP_ENDPOINT. Keys belong
    into OTEL_EXPORTER_OTLP_HEADERS."""
    otlp_messages: bool = True
    """Export what was said: messages, arguments of tools and their results."""
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
