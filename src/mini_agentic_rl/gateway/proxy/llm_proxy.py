"""`LLMProxy`: one OpenAI-compatible endpoint in front of other servers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from ...attribution import gateway_started, gateway_stopped
from ...http import AdmittingServer
from ...processes import serve_until_signal
from ...store import LightningStore
from ...types import LLM, ProxyLLM
from ..http.app import create_app
from ..settings import GatewayLimits, SessionSettings
from .call import ProxyService
from .upstreams import Upstream, Upstreams

logger = logging.getLogger(__name__)

_ALWAYS_DONE: Final = frozenset(
    {"rollout_attempt", "stream_conversion", "message_inspection", "return_token_ids", "logprobs", "opentelemetry"}
)
"""Middlewares and callbacks of agent-lightning whose work this proxy always does."""


class LLMProxy:
    """Send chat requests on by model name, and record calls under a rollout's URL.

    Args:
        port: port to listen on; None and 0 select a free one.
        model_list: the models. An entry is `{"model_name": …, "base_url": …, "api_key": …, "model": …, "token_ids": …}`
            or LiteLLM's form `{"model_name": …, "litellm_params": {"model": …, "api_base": …}}`, where `openai/…`
            without `api_base` is served at OPENAI_BASE_URL, or at OpenAI with OPENAI_API_KEY. Several entries with one
            name are replicas: the calls of a rollout go to the same one while it is reachable. `token_ids` is "vllm" or
            "sglang" if the server reports token ids; otherwise calls are recorded with their messages alone. Each entry
            may have its own `timeout`.
        store: records calls under a rollout's URL; the trainer sets its own.
        host: address to listen on.
        num_retries: retries after a failed connection or a status of 408, 429 or 5xx.
        timeout: seconds without data after which an upstream has failed.
        litellm_config, num_workers, launch_mode, launcher_args, middlewares, callbacks: agent-lightning's settings of
            its LiteLLM server. Host and port of `launcher_args` are used unless given; the rest has no effect, since
            there is no LiteLLM here. The work of its own middlewares and callbacks (rollout paths, spans, tokens,
            streams) is always done.
        api_key: bearer token of agents; without keys none is needed.
        api_keys: further bearer tokens.
        limits: limits of requests and rollouts.
        sessions: settings of sessions of deployed agents, which are kept in the store; None keeps none.

    Raises:
        UserError: an entry of the model list has no URL, or is there twice.
        ValueError: a number is out of range, or sessions without a store.
    """

    def __init__(
        self,
        port: int | None = None,
        model_list: Iterable[Upstream | Mapping[str, Any]] | None = None,
        store: LightningStore | None = None,
        host: str | None = None,
        litellm_config: Mapping[str, Any] | None = None,
        num_retries: int = 2,
        num_workers: int = 1,
        launch_mode: Literal["asyncio", "thread", "mp"] = "thread",
        launcher_args: Any = None,
        middlewares: Sequence[Any] | None = None,
        callbacks: Sequence[Any] | None = None,
        *,
        timeout: float = 600.0,
        api_key: str | None = None,
        api_keys: Sequence[str] = (),
        limits: GatewayLimits | None = None,
        sessions: SessionSettings | None = None,
    ) -> None:
        unused = {"litellm_config": litellm_config, "middlewares": middlewares, "callbacks": callbacks}
        for name, values in unused.items():
            unknown = [value for value in values or () if not (isinstance(value, str) and value in _ALWAYS_DONE)]
            if unknown:
                logger.warning("LLMProxy(%s=%r) has no effect: there is no LiteLLM here", name, unknown)
        host = host or getattr(launcher_args, "host", None) or "127.0.0.1"
        port = port or getattr(launcher_args, "port", None)
        self._store = store
        self._upstreams = Upstreams(model_list or (), num_retries=num_retries, timeout=timeout)
        limits = limits or GatewayLimits()
        keys = [*([] if api_key is None else [api_key]), *api_keys]
        service = ProxyService(self._upstreams, self.get_store, limits)
        app, self.admission = create_app(
            service, limits, api_keys=keys, store=store, sessions=sessions, close=self._upstreams.close
        )
        self._server = AdmittingServer(app, self.admission, host, port or 0, "LLM proxy")

    @property
    def models(self) -> list[str]:
        """Names of the served models."""
        return list(self._upstreams.servers)

    @property
    def endpoint(self) -> str:
        """Base URL for OpenAI clients on this machine, ending in /v1."""
        return f"{self._server.root}/v1"

    def get_store(self) -> LightningStore | None:
        """Return the store that records calls."""
        return self._store

    def set_store(self, store: LightningStore | None) -> None:
        """Set the store that records calls."""
        self._store = store

    def update_model_list(self, model_list: Iterable[Upstream | Mapping[str, Any]]) -> None:
        """Replace the models; running requests end at their old upstreams.

        Raises:
            UserError: as the constructor.
        """
        self._upstreams.replace(model_list)

    def is_running(self) -> bool:
        """Return True if the proxy accepts requests."""
        return self._server.running

    async def start(self) -> None:
        """Start serving; return once connections are accepted. A running proxy is left alone.

        Raises:
            ServerStartError: the address is not available.
        """
        if not self.is_running():
            await asyncio.to_thread(self._server.start)
            gateway_started(self.endpoint)
            logger.info("passing on %s at %s", ", ".join(self.models) or "no model yet", self.endpoint)

    async def stop(self, timeout: float = 5.0) -> None:
        """Refuse new requests with status 503 and `Retry-After`; cancel running ones after `timeout` seconds."""
        if self.is_running():
            gateway_stopped(self.endpoint)
        await asyncio.to_thread(self._server.stop, timeout)

    async def run_forever(self, drain_seconds: float = 30.0) -> None:
        """Serve until this task is cancelled or the process gets SIGINT or SIGTERM, then stop.

        Args:
            drain_seconds: seconds for running requests then; a second signal ends the process at once.

        Raises:
            ServerStartError: the address is not available.
            RuntimeError: the server ended unexpectedly.
        """
        await self.start()
        if not await serve_until_signal(self.is_running, lambda: self.stop(drain_seconds)):
            raise RuntimeError("the LLM proxy ended unexpectedly; the log says why")

    async def restart(self) -> None:
        """Stop, then start again."""
        await self.stop()
        await self.start()

    def as_resource(
        self,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        model: str | None = None,
        sampling_parameters: Mapping[str, Any] | None = None,
    ) -> LLM:
        """Return a model as a resource, behind each rollout's URL, or behind the URL of the given rollout.

        Args:
            model: name of the model; optional if there is only one.
            sampling_parameters: keyword arguments for the completion call of agents.

        Raises:
            ValueError: the model is ambiguous or unknown, or only one of the ids is given.
        """
        if model is None and len(self.models) == 1:
            model = self.models[0]
        if model not in self.models:
            raise ValueError(f"model={model!r}: expected one of {', '.join(self.models) or 'an empty model_list'}")
        resource = ProxyLLM(
            endpoint=self.endpoint,
            model=model,
            api_key=self.admission.keys.first,
            sampling_parameters=dict(sampling_parameters or {}),
        )
        if rollout_id is None and attempt_id is None:
            return resource
        if rollout_id is None or attempt_id is None:
            raise ValueError("as_resource needs both rollout_id and attempt_id, or neither")
        return resource.for_rollout(rollout_id, attempt_id)
