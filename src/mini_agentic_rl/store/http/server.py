"""`LightningStoreServer`: serves a store over HTTP from a thread, and is itself a store."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal

from ...config import LightningEnvVar, resolve_str_env_var
from ...http import Admission, AdmittingServer, ApiKeys, RequestLimits, WebPages, refuse_open_address
from ...processes import serve_until_signal
from ..base import LightningStore, LightningStoreCapabilities
from ..threading import ForwardingStore, LightningStoreThreaded, forward_methods
from . import routes
from .app import LongPolls, create_app
from .client import LightningStoreClient
from .wire_json import StoreLimits, encode

logger = logging.getLogger(__name__)

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 4747
_KEPT_AS_JSON: Final = frozenset({"start_rollout", "enqueue_rollout", "enqueue_many_rollouts", "update_rollout"})


class LightningStoreServer(ForwardingStore):
    """Share a store with other processes and machines, over the routes of `routes` and OTLP.

    In its own process every method of the contract is forwarded to the shared store. In a forked process the methods
    call the server over HTTP; pickled to another process it becomes a `LightningStoreClient` of itself.

    Args:
        store: The store to share.
        host: Address to listen on; this computer alone by default.
        port: Port to listen on, 4747 by default; 0 takes a free one, see `endpoint`.
        api_key: Bearer token that requests need; by default the environment variable AGL_API_KEY. Required if `host` is
            not this computer's loopback.
        limits: Bounds on requests; by default those of `StoreLimits`.
        cors_allow_origins: Web pages that may use the server from a browser: their origins, or "*" for every page.
        pages: Returns the pages at `/`, for the admission of the server.
        launch_mode, launcher_args, n_workers, tracker: Arguments of agent-lightning. Host and port of `launcher_args`
            are defaults; the rest has no effect: the server is one thread of this process.

    Raises:
        UserError: other computers could connect, and there is no key.
    """

    def __init__(
        self,
        store: LightningStore,
        host: str | None = None,
        port: int | None = None,
        *,
        api_key: str | None = None,
        limits: RequestLimits | None = None,
        cors_allow_origins: Sequence[str] | str | None = None,
        pages: Callable[[Admission], WebPages] | None = None,
        launch_mode: Literal["asyncio", "thread", "mp"] = "thread",
        launcher_args: Any = None,
        n_workers: int = 1,
        tracker: Any = None,
    ) -> None:
        host = host or getattr(launcher_args, "host", None) or DEFAULT_HOST
        if port is None:
            port = getattr(launcher_args, "port", None)
        if port is None:
            port = DEFAULT_PORT
        if launch_mode not in ("asyncio", "thread", "mp"):
            raise ValueError(f"launch_mode must be 'asyncio', 'thread' or 'mp', not {launch_mode!r}")
        if n_workers != 1 or tracker is not None:
            given = f"n_workers={n_workers}" if n_workers != 1 else "tracker"
            logger.warning("LightningStoreServer(%s) has no effect: one thread of this process serves", given)
        origins = [cors_allow_origins] if isinstance(cors_allow_origins, str) else list(cors_allow_origins or ())
        self.store = store if store.capabilities["thread_safe"] else LightningStoreThreaded(store)
        self._api_key = resolve_str_env_var(LightningEnvVar.AGL_API_KEY, api_key)
        refuse_open_address(host, self._api_key, "`api_key` or AGL_API_KEY")
        self._process = os.getpid()
        self._polls = LongPolls()
        hint = "'Authorization: Bearer KEY' (AGL_API_KEY)"
        keys = ApiKeys([] if self._api_key is None else [self._api_key], bearer_only=True, hint=hint)
        admission = Admission(limits or StoreLimits(), keys)
        shown = None if pages is None else pages(admission)
        app = create_app(self.store, self._polls, admission, origins=origins, pages=shown)
        self._thread = AdmittingServer(app, admission, host, port, "store server")
        self._client: LightningStoreClient | None = None

    def __reduce__(self) -> tuple[Callable[..., LightningStoreClient], tuple[Any, ...]]:
        return partial(LightningStoreClient, api_key=self._api_key), (self.endpoint,)

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(thread_safe=True, async_safe=True, zero_copy=True, otlp_traces=True)

    @property
    def endpoint(self) -> str:
        """Address for clients on this machine: http://host:port.

        Raises:
            RuntimeError: it has not been started, and `port` is 0.
        """
        return self._thread.root

    def otlp_traces_endpoint(self) -> str:
        return f"{self.endpoint}{routes.TRACES}"

    async def start(self) -> None:
        """Serve; returns once requests are answered. Starting a running server changes nothing.

        Raises:
            UserError: the address cannot be used.
        """
        if not self._thread.running:
            self._polls.open()
            await asyncio.to_thread(self._thread.start)
            logger.info("serving the store at %s", self.endpoint)

    async def stop(self, timeout: float = 5.0) -> None:
        """Refuse new requests with status 503, answer the waiting ones, and cancel the rest after `timeout` seconds.

        The store stays open.
        """
        self._polls.end()
        await asyncio.to_thread(self._thread.stop, timeout)

    async def run_forever(self, drain_seconds: float = 5.0) -> None:
        """Serve until this task is cancelled or the process is asked to end (SIGINT, SIGTERM), then stop.

        Args:
            drain_seconds: Time for running requests after that; a second signal ends the process at once.

        Raises:
            UserError: the address cannot be used.
            RuntimeError: the server ended by itself; the log says why.
        """
        await self.start()
        if not await serve_until_signal(lambda: self._thread.running, lambda: self.stop(drain_seconds)):
            raise RuntimeError("the store server ended unexpectedly; the log says why")

    async def close(self) -> None:
        if os.getpid() == self._process:
            await self.stop()
            await self.store.close()
        elif self._client is not None:
            await self._client.close()

    async def _forward(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name in _KEPT_AS_JSON:  # a runner in another process claims it
            signature = inspect.signature(getattr(LightningStore, name))
            encode(dict(signature.bind(None, *args, **kwargs).arguments), "")
        store = self.store
        if os.getpid() != self._process:
            if self._client is None:
                self._client = LightningStoreClient(self.endpoint, api_key=self._api_key)
            store = self._client
        return await getattr(store, name)(*args, **kwargs)


forward_methods(LightningStoreServer)
