"""The address that gets spans over OTLP, from the settings and OpenTelemetry's standard variables.

`OTEL_EXPORTER_OTLP_TRACES_…` takes precedence over `OTEL_EXPORTER_OTLP_…`. The protocol is always http/protobuf.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

from ...errors import UserError
from ...redaction import without_secrets
from ...trainer.settings import TraceExportSettings

logger = logging.getLogger(__name__)

TRACES_PATH: Final = "/v1/traces"
_PREFIXES: Final = ("OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_")
_SECONDS: Final = 10.0
_MILLISECONDS_FROM: Final = 1000.0


@dataclass(frozen=True)
class Receiver:
    """Address of the receiver, and options of the requests."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float = _SECONDS
    """Seconds for one request."""
    gzip: bool = False
    verify: ssl.SSLContext | bool = True
    """Trusted certificates."""

    @property
    def shown(self) -> str:
        """The address without keys, for messages."""
        return without_secrets(self.url)


def receiver_of(settings: TraceExportSettings) -> Receiver | None:
    """Return the receiver of spans; None without an address, or if the environment turns the export off.

    Raises:
        UserError: the address or a certificate cannot be used.
    """
    url, setting = settings.otlp, "otlp"
    if url is None:
        url, setting = _address_of_environment(), "OTEL_EXPORTER_OTLP_ENDPOINT"
        if url is None:
            return None
        if (_variable("PROTOCOL") or "").lower() == "grpc":
            logger.warning(
                "spans are sent to %s as http/protobuf, not by gRPC as OTEL_EXPORTER_OTLP_PROTOCOL says: "
                "give the address that takes http, mostly at port 4318",
                without_secrets(url),
            )
    elif not urlsplit(url).path.rstrip("/").endswith(TRACES_PATH):
        url = url.rstrip("/") + TRACES_PATH
    _check(url, setting)
    return Receiver(
        url=url,
        headers=_headers(_variable("HEADERS") or ""),
        timeout=_timeout(_variable("TIMEOUT")),
        gzip=(_variable("COMPRESSION") or "").lower() == "gzip",
        verify=_certificates(),
    )


def _address_of_environment() -> str | None:
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if os.environ.get("OTEL_TRACES_EXPORTER", "otlp").lower() == "none":
        return None
    whole = os.environ.get(f"{_PREFIXES[0]}ENDPOINT")
    if whole:
        return whole
    base = os.environ.get(f"{_PREFIXES[1]}ENDPOINT")
    return base.rstrip("/") + TRACES_PATH if base else None


def _check(url: str, setting: str) -> None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise UserError(f"{without_secrets(url)} is no address: expected one as http://localhost:6006", setting=setting)


def _variable(name: str) -> str | None:
    return next((value for prefix in _PREFIXES if (value := os.environ.get(prefix + name))), None)


def _headers(text: str) -> dict[str, str]:
    """Read `name=value,name=value`, whose values may be encoded as in a URL."""
    headers = {}
    for pair in text.split(","):
        name, equals, value = pair.partition("=")
        if equals and name.strip():
            headers[unquote(name.strip()).lower()] = unquote(value.strip())
        elif pair.strip():
            logger.warning("OTEL_EXPORTER_OTLP_HEADERS: left out what is no name=value")
    return headers


def _timeout(text: str | None) -> float:
    """Read a time. The specification has milliseconds, OpenTelemetry for Python seconds: small numbers are those."""
    try:
        given = float(text) if text else _SECONDS
    except ValueError:
        given = 0.0
    if not 0 < given < float("inf"):
        logger.warning("OTEL_EXPORTER_OTLP_TIMEOUT=%s is no time: %g seconds instead", text, _SECONDS)
        return _SECONDS
    return given / 1000 if given >= _MILLISECONDS_FROM else given


def _certificates() -> ssl.SSLContext | bool:
    trusted, client, key = (_variable(name) for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"))
    if trusted is None and client is None:
        return True
    try:
        context = ssl.create_default_context(cafile=trusted)
        if client is not None:
            context.load_cert_chain(client, key)
    except OSError as error:
        raise UserError(
            f"the certificates for the export of spans cannot be read: {error}",
            setting="OTEL_EXPORTER_OTLP_CERTIFICATE",
        ) from error
    return context
