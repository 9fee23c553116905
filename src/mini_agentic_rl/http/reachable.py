"""The address by which others reach the servers of this process, where whoever runs agents elsewhere knows it.

A server that is started for such agents listens there, unless it is told otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LOOPBACK = "127.0.0.1"

_address: ContextVar[str | None] = ContextVar("own_address", default=None)


@contextmanager
def reached_at(host: str) -> Iterator[None]:
    """Let what is started in this context, and in tasks and threads that it hands its context to, be reached here."""
    token = _address.set(host)
    try:
        yield
    finally:
        _address.reset(token)


def own_address() -> str:
    """Return the address for servers that agents have to reach: this computer's loopback where nobody said another."""
    return _address.get() or _LOOPBACK
