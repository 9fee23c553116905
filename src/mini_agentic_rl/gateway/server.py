"""The gateway on a backend, served over HTTP from a thread of its own."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import uvicorn

from mini_agentic_rl.store.base import LightningStore
from mini_agentic_rl.types import ProxyLLM

from .app import create_app
from .backend import Backend
from .chat import ChatService
from .chat_template import ChatRenderer, Tokenizer, ToolFormat
from .errors import ServerStartError

logger = logging.getLogger(__name__)

_KEEP_ALIVE_SECONDS = 75
_BACKLOG = 2048


class MiniLLMServer:
    """An OpenAI-compatible server that records what is asked under a rollout's URL.

    Args:
        backend: samples tokens; used from the server's own event loop.
        tokenizer: the model's Hugging Face tokenizer.
        model_name: public name of the model; asking for it samples with `default_adapter`.
        host: address to listen on.
        port: port to listen on; 0 takes a free one, which `port` then tells.
        store: where calls under a rollout's URL are recorded; without one such URLs are refused.
        api_key: bearer token to ask for; None asks for none.
        default_adapter: adapter that `model_name` stands for; None is the base model alone.
        tool_format: how tool calls are written.
        extra_eos_ids: further token ids that end an answer, e.g. of the model's generation config.
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        *,
        model_name: str,
        host: str = "127.0.0.1",
        port: int = 0,
        store: LightningStore | None = None,
        api_key: str | None = None,
        default_adapter: str | None = "default",
        tool_format: ToolFormat = "hermes",
        extra_eos_ids: Sequence[int] = (),
    ) -> None:
        self.model_name = model_name
        self.host = host
        self.renderer = ChatRenderer(tokenizer, tool_format=tool_format, extra_eos_ids=extra_eos_ids)
        self.service = ChatService(backend, self.renderer, model_name, default_adapter, store)
        self._api_key = api_key
        self._wanted_port = port
        self._bound_port: int | None = None
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port it listens on.

        Raises:
            RuntimeError: it has not been started, and any free port was asked for.
        """
        port = self._bound_port or self._wanted_port
        if not port:
            raise RuntimeError("the server has no port before start()")
        return port

    @property
    def endpoint(self) -> str:
        """Base URL for OpenAI clients on this machine, ending in /v1."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}/v1" if ":" in host else f"http://{host}:{self.port}/v1"

    def as_resource(self, sampling_parameters: Mapping[str, Any] | None = None) -> ProxyLLM:
        """The endpoint as a resource for rollouts.

        Args:
            sampling_parameters: keyword arguments that agents pass to the completion call.
        """
        return ProxyLLM(
            endpoint=self.endpoint,
            model=self.model_name,
            api_key=self._api_key,
            sampling_parameters=dict(sampling_parameters or {}),
        )

    def start(self) -> MiniLLMServer:
        """Serve; returns once connections are accepted. Starting a running server changes nothing.

        Raises:
            ServerStartError: the address cannot be had; the message names the setting to change.
        """
        if self._thread is not None:
            return self
        listener = _listen(self.host, self._wanted_port)
        self._bound_port = int(listener.getsockname()[1])
        app = create_app(self.service, api_key=self._api_key)
        server = _Server(
            uvicorn.Config(
                app,
                loop="asyncio",
                lifespan="off",
                access_log=False,
                log_config=None,
                log_level="warning",
                backlog=_BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            )
        )
        thread = threading.Thread(
            target=server.serve_until_stopped, args=(listener,), name="gateway-server", daemon=True
        )
        thread.start()
        server.ready.wait()
        if not server.started:
            thread.join()
            raise ServerStartError(f"the server could not start: {server.failure}")
        self._server, self._thread = server, thread
        logger.info("serving %s at %s", self.model_name, self.endpoint)
        return self

    def stop(self, timeout: float = 5.0) -> None:
        """Stop taking requests, give those under way `timeout` seconds, then cancel them."""
        if self._server is None or self._thread is None:
            return
        self._server.config.timeout_graceful_shutdown = max(1, round(timeout))
        self._server.should_exit = True
        self._thread.join()
        self._server = self._thread = self._bound_port = None

    def __enter__(self) -> MiniLLMServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()
        self.failure: BaseException | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    def serve_until_stopped(self, listener: socket.socket) -> None:
        try:
            asyncio.run(self.serve(sockets=[listener]))
        except (Exception, SystemExit) as error:  # told to whoever waits in start(), or logged when already serving
            self.failure = error
            if self.ready.is_set():
                logger.exception("the server stopped unexpectedly")
        finally:
            listener.close()
            self.ready.set()


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise ServerStartError(f"port {port} does not exist: choose --port between 0 and 65535 (0 takes a free one)")
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            message = f"port {port} of {host} is already in use: choose another with --port (0 takes a free one)"
        elif error.errno == errno.EACCES:
            message = f"port {port} needs more rights than this user has: choose one above 1023 with --port"
        else:
            message = f"cannot listen on {host}:{port} ({error}): change --host or --port"
        raise ServerStartError(message) from None
    return listener
