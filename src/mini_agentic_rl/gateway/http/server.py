"""The gateway on a sampler, served over HTTP from a thread of its own."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from ...attribution import gateway_started, gateway_stopped
from ...errors import UserError
from ...http import AdmittingServer
from ...samplers import Sampler
from ...store import LightningStore
from ...tokens import CompletionRecord
from ...types import ProxyLLM
from ..completion.service import ChatService
from ..render.decoding import ThinkingName, Tokenizer
from ..render.renderer import ChatRenderer
from ..settings import GatewayLimits, SessionSettings
from ..tool_formats import ToolFormatName
from .app import create_app

logger = logging.getLogger(__name__)

_EVERYWHERE = ("0.0.0.0", "::")


class MiniLLMServer(AdmittingServer):
    """Serve the OpenAI API on a sampler, and record calls under a rollout's URL.

    Args:
        sampler: samples tokens; used from the server's event loop.
        tokenizer: the model's Hugging Face tokenizer.
        model_name: public name of the model, which samples with `default_adapter`.
        host: address to listen on.
        port: port to listen on; 0 selects a free one.
        public_url: URL for agents on other machines, with or without /v1; None takes the address, or the host name if
            the server listens on all addresses.
        store: records calls under a rollout's URL; without a store such URLs are refused.
        api_key: bearer token of clients; without keys none is needed.
        api_keys: further bearer tokens.
        limits: limits of requests and rollouts.
        default_adapter: adapter behind `model_name`; None is the base model.
        tool_format: how tool calls are written; see `ChatRenderer`.
        thinking: treatment of thoughts; see `mini_agentic_rl.gateway.render.decoding`.
        extra_eos_ids: further token ids that end an answer, e.g. of the model's generation config.
        sessions: settings of sessions of deployed agents, which are kept in the store; None keeps none.

    Raises:
        ValueError: sessions without a store.
        UserError: `public_url` is not a URL.
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
        self.model_name = model_name
        self._public_url = None if public_url is None else public_url.rstrip("/").removesuffix("/v1")
        if public_url is not None:
            parts = urlsplit(public_url)
            if parts.scheme not in ("http", "https") or not parts.netloc:
                raise UserError(f"{public_url!r} is no URL: write it as http://learner:8000", setting="gateway_url")
        self.renderer = ChatRenderer(tokenizer, tool_format=tool_format, thinking=thinking, extra_eos_ids=extra_eos_ids)
        limits = limits or GatewayLimits()
        self.service = ChatService(sampler, self.renderer, model_name, default_adapter, store, limits)
        keys = [*([] if api_key is None else [api_key]), *api_keys]
        app, admission = create_app(self.service, limits, api_keys=keys, store=store, sessions=sessions)
        super().__init__(app, admission, host, port, "gateway server")

    @property
    def expert_prefixes(self) -> dict[str, Sequence[CompletionRecord]]:
        """Recorded calls that answer the first calls of rollouts, by the name in a rollout's metadata
        (`semconv.EXPERT_PREFIX`)."""
        return self.service.expert_prefixes

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
        self.service.constraints.close()

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
        """Hold new requests, e.g. while the weights are updated; running ones continue. With
        `limits.when_paused="refuse"` new requests get status 429 and a `Retry-After` header instead."""
        self.admission.pause()

    def resume(self) -> None:
        """Answer requests again, the held ones first."""
        self.admission.resume()
