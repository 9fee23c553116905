"""The gateway on a sampler, served over HTTP from a thread of its own."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from ...attribution import gateway_started, gateway_stopped
from ...errors import UserError
from ...http import Admission, AdmittingServer
from ...plugins import load_part
from ...samplers import Sampler
from ...store import LightningStore
from ...tokens import CompletionRecord
from ...types import ProxyLLM
from ..completion.prepare import Preparation
from ..completion.record import RolloutBudgets
from ..completion.service import ChatService
from ..render.decoding import ThinkingName, Tokenizer
from ..render.renderer import ChatRenderer
from ..settings import GatewayLimits, SessionSettings
from ..tool_formats import ToolFormatName
from .app import create_app

logger = logging.getLogger(__name__)

_EVERYWHERE = ("0.0.0.0", "::")


class MiniLLMServer(AdmittingServer):
    """Serve the OpenAI API on a sampler, and record what is asked under a rollout's URL.

    Args:
        sampler: samples tokens; used from the server's own event loop.
        tokenizer: the model's Hugging Face tokenizer.
        model_name: public name of the model; asking for it samples with `default_adapter`.
        host: address to listen on.
        port: port to listen on; 0 takes a free one, which `port` then tells.
        public_url: URL by which agents elsewhere reach it, with or without /v1; None takes its address, and where it
            listens on every one the name of this machine.
        store: where calls under a rollout's URL are recorded; without one such URLs are refused.
        api_key: bearer token to ask for; without one, and without `api_keys`, none is asked for.
        api_keys: further bearer tokens that are accepted.
        limits: what is let in, and how much each rollout may use.
        default_adapter: adapter that `model_name` stands for; None is the base model alone.
        tool_format: how tool calls are written; see `ChatRenderer`.
        thinking: what becomes of thoughts; see `mini_agentic_rl.gateway.render.decoding`.
        extra_eos_ids: further token ids that end an answer, e.g. of the model's generation config.
        sessions: keep sessions of agents in use in the store, under these settings; None keeps none.

    Raises:
        ValueError: sessions without a store.
        UserError: `public_url` is no URL.
    """

    def __init__(
        self,
        sampler: Sampler,
        tokenizer: Tokenizer,
        *,
        model_name: str,
        host: str = "127.0.0.1",
        port: int = 0,
        public_url: str | None = None,
        store: LightningStore | None = None,
        api_key: str | None = None,
        api_keys: Sequence[str] = (),
        limits: GatewayLimits | None = None,
        default_adapter: str | None = "default",
        tool_format: ToolFormatName = "auto",
        thinking: ThinkingName = "auto",
        extra_eos_ids: Sequence[int] = (),
        sessions: SessionSettings | None = None,
    ) -> None:
        if sessions is not None and store is None:
            raise ValueError("sessions are kept in a store: give one")
        self.model_name = model_name
        self._public_url = None if public_url is None else _checked_url(public_url)
        self.renderer = ChatRenderer(tokenizer, tool_format=tool_format, thinking=thinking, extra_eos_ids=extra_eos_ids)
        limits = limits or GatewayLimits()
        budgets = RolloutBudgets(limits, lambda: store)
        preparation = Preparation(sampler, self.renderer, model_name, default_adapter, store, budgets, limits)
        self.service = ChatService(preparation)
        keys = [*([] if api_key is None else [api_key]), *api_keys]
        admission = Admission(limits, keys, refuse_when_paused=limits.when_paused == "refuse")
        gate = None if sessions is None else load_part("learning").session_gate(store, sessions)
        super().__init__(create_app(self.service, admission, gate), admission, host, port, "gateway server")

    @property
    def expert_prefixes(self) -> dict[str, Sequence[CompletionRecord]]:
        """Recorded calls that answer the first calls of rollouts, by the name in a rollout's metadata
        (`semconv.EXPERT_PREFIX`)."""
        return self.service.preparation.expert_prefixes

    @property
    def endpoint(self) -> str:
        """Base URL for OpenAI clients on this machine, ending in /v1."""
        return f"{self.root}/v1"

    @property
    def public_endpoint(self) -> str:
        """Base URL for agents, on whichever machine they run."""
        if self._public_url is not None:
            return f"{self._public_url}/v1"
        return f"http://{socket.gethostname()}:{self.port}/v1" if self.host in _EVERYWHERE else self.endpoint

    def announce(self) -> None:
        for endpoint in {self.endpoint, self.public_endpoint}:
            gateway_started(endpoint)
        logger.info("serving %s at %s", self.model_name, self.public_endpoint)

    def stop(self, timeout: float = 5.0) -> None:
        if self.running:
            for endpoint in {self.endpoint, self.public_endpoint}:
                gateway_stopped(endpoint)
        super().stop(timeout)
        self.service.close()

    def as_resource(self, sampling_parameters: Mapping[str, Any] | None = None) -> ProxyLLM:
        """Return the endpoint as a resource for rollouts.

        Args:
            sampling_parameters: keyword arguments that agents pass to the completion call.
        """
        return ProxyLLM(
            endpoint=self.public_endpoint,
            model=self.model_name,
            api_key=self.admission.keys.first,
            sampling_parameters=dict(sampling_parameters or {}),
        )

    def pause(self) -> None:
        """Hold requests that arrive from now on, e.g. while the weights are updated; those being answered go on. With
        `limits.when_paused="refuse"` they are answered with status 429 and a `Retry-After` instead."""
        self.admission.pause()

    def resume(self) -> None:
        """Answer requests again, those that were held first."""
        self.admission.resume()


def _checked_url(url: str) -> str:
    """Return a URL without the /v1 at its end.

    Raises:
        UserError: it is none.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UserError(f"{url!r} is no URL: write it as http://learner:8000", setting="gateway_url")
    return url.rstrip("/").removesuffix("/v1")
