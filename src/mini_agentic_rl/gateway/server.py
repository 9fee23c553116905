"""The gateway on a backend, served over HTTP from a thread of its own."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from mini_agentic_rl.serving import ServerThread
from mini_agentic_rl.store.base import LightningStore
from mini_agentic_rl.types import ProxyLLM

from .app import create_app
from .backend import Backend
from .chat import ChatService
from .chat_template import ChatRenderer, Tokenizer, ToolFormat

logger = logging.getLogger(__name__)


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
        self._thread = ServerThread(create_app(self.service, api_key=api_key), host, port, "gateway server")

    @property
    def port(self) -> int:
        """The port it listens on.

        Raises:
            RuntimeError: it has not been started, and any free port was asked for.
        """
        return self._thread.port

    @property
    def endpoint(self) -> str:
        """Base URL for OpenAI clients on this machine, ending in /v1."""
        return f"{self._thread.root}/v1"

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
        if not self._thread.running:
            self._thread.start()
            logger.info("serving %s at %s", self.model_name, self.endpoint)
        return self

    def stop(self, timeout: float = 5.0) -> None:
        """Stop taking requests, give those under way `timeout` seconds, then cancel them."""
        self._thread.stop(timeout)

    def __enter__(self) -> MiniLLMServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
