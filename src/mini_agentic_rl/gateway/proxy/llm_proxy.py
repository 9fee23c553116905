"""`LLMProxy`: the gateway over servers of others. The agent sees one OpenAI-compatible endpoint, as with a policy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from ...attribution import gateway_started, gateway_stopped
from ...http import Admission, AdmittingServer
from ...plugins import load_part
from ...processes import serve_until_signal
from ...store import LightningStore
from ...types import LLM, ProxyLLM
from ..completion.record import RolloutBudgets
from ..http.app import create_app
from ..settings import GatewayLimits, SessionSettings
from .call import ProxyService
from .upstreams import Upstream, Upstreams

logger = logging.getLogger(__name__)

_ALWAYS_DONE: Final = frozenset(
    {"rollout_attempt", "stream_conversion", "message_inspection", "return_token_ids", "logprobs", "opentelemetry"}
)
"""Middlewares and callbacks of agent-lightning whose work this proxy does by itself."""


class LLMProxy:
    """Hands chat requests on by model name, and records those made under a rollout's URL.

    Args:
        port: port to listen on; None and 0 take a free one.
        model_list: what is served where: `{"model_name": …, "base_url": …, "api_key": …, "model": …, "token_ids": …}`
            each, or LiteLLM's form `{"model_name": …, "litellm_params": {"model": …, "api_base": …}}`, where
            `openai/…` without `api_base` stands at OPENAI_BASE_URL, or at OpenAI with OPENAI_API_KEY. Several
            entries of one name are servers of one model: the calls of a rollout go to the same one as long as it is
            there. `token_ids` is "vllm" or "sglang" where the server tells token ids; without it calls are recorded
            with their messages alone. `timeout` and `connect_timeout` may be given for each.
        store: where calls under a rollout's URL are recorded; the trainer gives its own.
        host: address to listen on.
        num_retries: how often a request is sent again after a failed connection or an answer of 408, 429 or 5xx.
        timeout: seconds that an upstream may be silent.
        connect_timeout: seconds within which a connection to an upstream has to be made.
        litellm_config, num_workers, launch_mode, launcher_args, middlewares, callbacks: agent-lightning's settings of
            its LiteLLM server. Host and port of `launcher_args` count where none are given; the rest has no effect,
            since there is no LiteLLM here. What its own middlewares and callbacks do (paths of rollouts, spans, tokens,
            streams) is always done.
        api_key: bearer token that agents must send; without one, and without `api_keys`, none is asked for.
        api_keys: further bearer tokens that are accepted.
        limits: what is let in, and how much each rollout may use.
        sessions: keep sessions of agents in use in the store, under these settings; None keeps none.

    Raises:
        UserError: an entry of the model list does not say where its model is served, or is there twice.
        ValueError: a number that cannot work.
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
        connect_timeout: float = 5.0,
        api_key: str | None = None,
        api_keys: Sequence[str] = (),
        limits: GatewayLimits | None = None,
        sessions: SessionSettings | None = None,
    ) -> None:
        if sessions is not None and store is None:
            raise ValueError("sessions are kept in a store: give one")
        _warn_of_unused(litellm_config=litellm_config, middlewares=middlewares, callbacks=callbacks)
        host = host or getattr(launcher_args, "host", None) or "127.0.0.1"
        port = port or getattr(launcher_args, "port", None)
        self._store = store
        self._upstreams = Upstreams(
            model_list or (), num_retries=num_retries, timeout=timeout, connect_timeout=connect_timeout
        )
        limits = limits or GatewayLimits()
        keys = [*([] if api_key is None else [api_key]), *api_keys]
        self.admission = Admission(limits, keys, refuse_when_paused=limits.when_paused == "refuse")
        service = ProxyService(self._upstreams, self.get_store, RolloutBudgets(limits, self.get_store))
        gate = None if sessions is None else load_part("learning").session_gate(store, sessions)
        app = create_app(service, self.admission, gate, self._upstreams.close)
        self._server = AdmittingServer(app, self.admission, host, port or 0, "LLM proxy")

    @property
    def models(self) -> list[str]:
        """Names that may be asked for."""
        return self._upstreams.names

    @property
    def endpoint(self) -> str:
        """Base URL for OpenAI clients on this machine, ending in /v1."""
        return f"{self._server.root}/v1"

    def get_store(self) -> LightningStore | None:
        """Return where calls are recorded."""
        return self._store

    def set_store(self, store: LightningStore | None) -> None:
        """Record in this store from now on."""
        self._store = store

    def update_model_list(self, model_list: Iterable[Upstream | Mapping[str, Any]]) -> None:
        """Serve these models from now on; requests under way end where they began.

        Raises:
            UserError: as the constructor.
        """
        self._upstreams.replace(model_list)

    def is_running(self) -> bool:
        """Return True if it takes requests."""
        return self._server.running

    async def start(self) -> None:
        """Serve; return once connections are accepted. Starting a running proxy changes nothing.

        Raises:
            ServerStartError: the address cannot be had.
        """
        if not self.is_running():
            await asyncio.to_thread(self._server.start)
            gateway_started(self.endpoint)
            logger.info("passing on %s at %s", ", ".join(self.models) or "no model yet", self.endpoint)

    def pause(self) -> None:
        """Hold requests that arrive from now on; those being answered go on. See `GatewayLimits.when_paused`."""
        self.admission.pause()

    def resume(self) -> None:
        """Answer requests again, those that were held first."""
        self.admission.resume()

    async def stop(self, timeout: float = 5.0) -> None:
        """Refuse new requests with status 503 and a `Retry-After`, give those under way `timeout` seconds, then cancel
        them."""
        if self.is_running():
            gateway_stopped(self.endpoint)
        await asyncio.to_thread(self._server.stop, timeout)

    async def run_forever(self, drain_seconds: float = 30.0) -> None:
        """Serve until this task is cancelled or the process is asked to end (SIGINT, SIGTERM), then stop.

        Args:
            drain_seconds: what requests under way get then; a second signal ends the process at once.

        Raises:
            ServerStartError: the address cannot be had.
            RuntimeError: the server ended by itself; the log says why.
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
        """Return a model as a resource: behind each rollout's own URL, or behind that of the one rollout that is named.

        Args:
            model: which; may be left out where there is one.
            sampling_parameters: keyword arguments that agents pass to the completion call.

        Raises:
            ValueError: several models and none named, an unknown one, or one id of the two.
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


def _warn_of_unused(**settings: Any) -> None:
    for name, value in settings.items():
        unknown = [one for one in value or () if not (isinstance(one, str) and one in _ALWAYS_DONE)]
        if unknown:
            logger.warning("LLMProxy(%s=%r) has no effect: there is no LiteLLM here", name, unknown)
