"""A server in a thread with its own event loop, behind an admission."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import TracebackType
from typing import Any

import uvicorn
from typing_extensions import Self

from .admission import Admission, refuse_open_address
from .connections import ACCEPTED_AT_ONCE, BoundedConnection, ReadingTurn, most_connections
from .errors import ServerStartError

logger = logging.getLogger(__name__)

_KEEP_ALIVE_SECONDS = 75
_RESTARTS_A_MINUTE = 5
"""Restarts after errors; a server that stops more often ends its process."""
_BACKLOG = 2048


class _WithoutCancellations(logging.Filter):
    """Drops uvicorn's tracebacks of requests that are cancelled when a server stops."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        return not (isinstance(error, asyncio.CancelledError) or record.msg == _CANCELLING)


_CANCELLING = "Cancel %s running task(s), timeout graceful shutdown exceeded"
logging.getLogger("uvicorn.error").addFilter(_WithoutCancellations())


class AdmittingServer:
    """Serve an application at one address until it is stopped; its admission is drained first.

    Args:
        app: The ASGI application, whose endpoints use the admission.
        admission: Admits requests.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        name: Name in thread names and the log.
    """

    def __init__(self, app: Any, admission: Admission, host: str, port: int, name: str) -> None:
        self._app = app
        self.admission = admission
        self.host = host
        self._name = name
        self._wanted_port = port
        self._bound_port: int | None = None
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port it listens on.

        Raises:
            RuntimeError: it has not been started, and the port is 0.
        """
        port = self._bound_port or self._wanted_port
        if not port:
            raise RuntimeError(f"the {self._name} has no port before start()")
        return port

    @property
    def root(self) -> str:
        """Its URL for clients on this machine, without a path: http://host:port."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def running(self) -> bool:
        """True while it accepts connections."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> Self:
        """Serve; returns once connections are accepted. Starting a running server changes nothing.

        Raises:
            ServerStartError: the address cannot be used, or other computers could connect and there is no key.
        """
        if self._thread is not None:
            return self
        refuse_open_address(self.host, self.admission.keys.first)
        self.admission.reopen()
        listener = _listen(self.host, self._wanted_port)
        self._bound_port = int(listener.getsockname()[1])
        bounds = {
            "most": most_connections(),
            "most_unfinished": self.admission.limits.max_awaited_bodies,
            "ending": set(),
            "headless": {},
            "idle": {},
            "unfinished": {},
            "turn": ReadingTurn(),
        }
        server = _Server(
            uvicorn.Config(
                self._app,
                loop="asyncio",
                http=type("Connection", (BoundedConnection,), bounds),
                ws="none",
                lifespan="auto",
                access_log=False,
                proxy_headers=False,
                log_config=None,
                log_level="warning",
                backlog=ACCEPTED_AT_ONCE,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            ),
            self._name,
        )
        thread = threading.Thread(target=server.serve_until_stopped, args=(listener,), name=self._name, daemon=True)
        thread.start()
        server.ready.wait()
        if not server.started:
            thread.join()
            raise ServerStartError(f"the {self._name} could not start: {server.failure}")
        self._server, self._thread = server, thread
        self.announce()
        return self

    def announce(self) -> None:
        """Log the address; called after the start."""

    def stop(self, timeout: float = 5.0) -> None:
        """Refuse new requests with status 503 and a `Retry-After`, and cancel the running ones after `timeout` seconds.
        Blocks."""
        if self._server is None or self._thread is None:
            return
        end = time.monotonic() + timeout
        if self.running:
            self.admission.drain(timeout)
        self._server.config.timeout_graceful_shutdown = max(1, round(end - time.monotonic()))
        self._server.should_exit = True
        self._thread.join()
        self._server = self._thread = self._bound_port = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, name: str) -> None:
        super().__init__(config)
        self.ready = threading.Event()
        self.failure: BaseException | None = None
        self._name = name

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)  # more connections may wait than are accepted at once
        self.ready.set()

    def serve_until_stopped(self, listener: socket.socket) -> None:
        """Serve; after an error, such as lack of memory, start again on the same port."""
        ends: list[float] = []
        try:
            while self._ended_by_error(listener):
                ends = [*(end for end in ends if time.monotonic() - end < 60), time.monotonic()]
                if len(ends) > _RESTARTS_A_MINUTE:
                    logger.error("the %s keeps stopping: this process is asked to end", self._name)
                    os.kill(os.getpid(), signal.SIGTERM)
                    return
                self.started = self.should_exit = self.force_exit = False
                self.server_state.connections.clear()
                self.server_state.tasks.clear()
        finally:
            listener.close()
            self.ready.set()

    def _ended_by_error(self, listener: socket.socket) -> bool:
        """Serve until a stop is requested; return True if an error ended it after the start."""
        try:
            with listener.dup() as accepting:
                asyncio.run(self._serve_or_cut_off(accepting))
        except (Exception, SystemExit) as error:  # raised by start(), or logged after it
            self.failure = error
            if not self.ready.is_set():
                return False
            logger.exception("the %s stopped unexpectedly", self._name)
            return not self.should_exit
        return False

    async def _serve_or_cut_off(self, accepting: socket.socket) -> None:
        """Serve; after an error abort the connections, so that no client waits for its own timeout."""
        try:
            await self.serve(sockets=[accepting])
        except asyncio.CancelledError:  # by `asyncio.run`, whose loop was stopped
            with suppress(NotImplementedError):  # the event loop of Windows has no readers, and ends its accepts
                asyncio.get_running_loop().remove_reader(accepting)  # new connections wait for the next loop
            for connection in self.server_state.connections:
                connection.transport.abort()
            raise


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise ServerStartError(
            f"there is no port {port}: choose one between 0 and 65535 (0 takes a free one)", setting="port"
        )
    # asyncio turns Nagle's delay off only for sockets with an explicit protocol
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # On Windows SO_REUSEADDR gives the port of a running server to a second one as well.
        listener.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR), 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            message = f"port {port} of {host} is already in use: choose another one (0 takes a free one)"
            raise ServerStartError(message, setting="port") from None
        if error.errno == errno.EACCES:
            message = f"port {port} is reserved, or needs more rights than this user has: choose another one above 1023"
            raise ServerStartError(message, setting="port") from None
        raise ServerStartError(
            f"cannot listen on {host}:{port} ({error}): change it, or `port`", setting="host"
        ) from None
    return listener


_LOOPBACK = "127.0.0.1"

_address: ContextVar[str | None] = ContextVar("own_address", default=None)


@contextmanager
def reached_at(host: str) -> Iterator[None]:
    """Set `own_address` in this context, for servers that agents have to reach."""
    token = _address.set(host)
    try:
        yield
    finally:
        _address.reset(token)


def own_address() -> str:
    """Return the address for servers that agents have to reach: the loopback unless `reached_at` sets another."""
    return _address.get() or _LOOPBACK
