"""A policy behind its own endpoint, which agents call while an algorithm trains or evaluates it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..errors import first_line
from ..http import is_loopback, own_address
from ..policy import (
    ADAPTER_CONFIG,
    DEFAULT_ADAPTER,
    EngineSettings,
    ModelNotFoundError,
    Policy,
    PolicyError,
    adapter_folder,
    resolve_model,
)
from ..samplers import Sampler, SamplerSettings, make_sampler
from ..store import LightningStore
from ..types import LLM, NamedResources
from .http.server import MiniLLMServer
from .proxy import LLMProxy
from .render.decoding import ThinkingName, keep_tool_format, kept_tool_format
from .resources import with_policy
from .settings import GatewayLimits, SessionSettings
from .tool_formats import ToolFormatName

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_PROMPTS: Final = (
    "The river rises in the hills and",
    "Question: how many apples are left when 3 of 12 are eaten? Answer:",
    "def add(a, b):",
    "Dear friend, I am writing to you because",
)
"""Texts with which a sampler is tested before the first request."""


def load_tokenizer(
    model: str | PreTrainedModel, tokenizer: Any | None = None, adapter: str | Path | None = None
) -> PreTrainedTokenizerBase:
    """Return the given tokenizer (an object, a folder or a hub id), or that of the adapter, or that of the model.

    Raises:
        ModelNotFoundError: there is none.
    """
    if tokenizer is not None and not isinstance(tokenizer, str):
        given: PreTrainedTokenizerBase = tokenizer
        return given
    source = tokenizer or (None if adapter is None else _tokenizer_of_adapter(adapter))
    if not source and isinstance(model, str):  # a folder of an adapter has a tokenizer, or else its base has
        source = _tokenizer_of_adapter(model) or resolve_model(model)
    elif not source and not isinstance(model, str):
        source = model.name_or_path
    if not source:
        raise ModelNotFoundError("a loaded model needs its tokenizer: MiniGRPO(model, tokenizer)")
    try:
        loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise ModelNotFoundError(f"cannot load the tokenizer of {source!r}: {first_line(error)}") from error
    return loaded


def _tokenizer_of_adapter(folder: str | Path) -> str | None:
    adapter = adapter_folder(folder)
    return str(adapter) if adapter is not None and (adapter / "tokenizer_config.json").is_file() else None


def save_kept_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a tokenizer beside all models in a folder; beside adapters too if it has a tool format: the tokenizer of
    the base model does not."""
    for name in ("config.json", *([] if kept_tool_format(tokenizer) == "auto" else [ADAPTER_CONFIG])):
        for weights in folder.rglob(name):
            tokenizer.save_pretrained(weights.parent)


class ServedPolicy:
    """A policy that learns, its tokenizer, its sampler, and the server.

    The model's name stands for its (first) trained adapter. Each adapter is served under its own name, and the model
    without an adapter as `{name}-base`.
    """

    def __init__(self, policy: Policy, tokenizer: PreTrainedTokenizerBase, name: str, sampler: Sampler) -> None:
        self.policy = policy
        self.tokenizer = tokenizer
        self.name = name
        self.server: MiniLLMServer | None = None
        self.sampler = sampler
        self._published: dict[str, int] = {}
        """Number of weight changes of each adapter at its last publication."""
        self._proxy: LLMProxy | None = None
        both = {name, self.base_name} & set(policy.model.versions) - {DEFAULT_ADAPTER}
        if both:
            raise PolicyError(f"the model itself is served as {both.pop()!r}: give that adapter another name")

    @property
    def base_name(self) -> str:
        """Name of the model without an adapter."""
        return f"{self.name}-base"

    @property
    def model_names(self) -> list[str]:
        """All served names."""
        return [self.name, self.base_name, *self.policy.model.versions]

    @property
    def trained_models(self) -> dict[str, str]:
        """The adapter that learns from the calls to each served model."""
        adapters = self.policy.model.adapters
        return {self.name: adapters[0], **{adapter: adapter for adapter in adapters}}

    def resources(self, initial: NamedResources, sampling_parameters: dict[str, Any]) -> NamedResources:
        """Return the resources of agents: `initial`, the trained model as "llm" and "main_llm", and each named adapter.

        Raises:
            RuntimeError: the policy is not served.
        """
        if self.server is None:
            raise RuntimeError("the policy is not served")
        policy: LLM = (
            self.server.as_resource(sampling_parameters)
            if self._proxy is None
            else self._proxy.as_resource(model=self.name, sampling_parameters=sampling_parameters)
        )
        return with_policy(initial, policy, [name for name in self.policy.model.versions if name != DEFAULT_ADAPTER])

    @classmethod
    def load(
        cls,
        model: str | PreTrainedModel,
        tokenizer: Any | None = None,
        *,
        engine: EngineSettings | None = None,
        name: str | None = None,
        make: Callable[..., Policy] = Policy.load,
        sampler: SamplerSettings | None = None,
        least_context: int = 1,
        note: Callable[[str], None] = logger.info,
        **options: Any,
    ) -> ServedPolicy:
        """Load model and tokenizer, and connect to the sampler.

        Args:
            model: a folder, a hub id or a loaded model.
            tokenizer: see `load_tokenizer`.
            engine: settings of the policy's engine.
            name: served name of the model; None takes the name of its folder, or its id on the Hub.
            make: creates the policy from the model, `engine` and the options.
            sampler: settings of the sampler; None is the policy's own engine.
            least_context: context length in tokens that the sampler must have.
            note: called with a message before slow steps.
            options: options of `load_model`.
        """
        source = model if isinstance(model, str) else model.name_or_path
        folder = Path(source).expanduser()
        name = name or (folder.resolve().name if source and folder.is_dir() else source) or type(model).__name__
        policy = make(model, engine=engine, **options)
        try:
            loaded = load_tokenizer(model, tokenizer, options.get("adapter"))
            samples = make_sampler(
                sampler or SamplerSettings(),
                policy,
                base_name=f"{name}-base",
                prompts=[loaded.encode(text) for text in _FIRST_PROMPTS],
                model_folder=resolve_model(source) if isinstance(model, str) else source,
                least_context=least_context,
                note=note,
            )
            return cls(policy, loaded, name, samples)
        except BaseException:
            policy.close()
            raise

    def serve(
        self,
        *,
        store: LightningStore | None = None,
        host: str | None = None,
        port: int = 0,
        public_url: str | None = None,
        api_keys: Sequence[str] = (),
        limits: GatewayLimits | None = None,
        tool_format: ToolFormatName = "auto",
        thinking: ThinkingName = "auto",
        sessions: SessionSettings | None = None,
    ) -> MiniLLMServer:
        """Start the server. Calls of rollouts are recorded in `store`, and with `sessions` those of deployed agents.

        If other machines can reach the server and no key is given, a random key is required: agents find it in their
        resources.

        Args:
            store: records the calls.
            host: address to listen on; None takes the address at which the runners reach this process, or the loopback
                address.
            port, public_url, api_keys, limits, tool_format, thinking, sessions: as for `MiniLLMServer`.
        """
        if tool_format != "auto":
            keep_tool_format(self.tokenizer, tool_format)
        host = own_address() if host is None else host
        if not api_keys and not is_loopback(host):
            api_keys = (secrets.token_urlsafe(32),)
        self.server = MiniLLMServer(
            self.sampler,
            self.tokenizer,
            model_name=self.name,
            host=host,
            port=port,
            public_url=public_url,
            store=store,
            api_keys=api_keys,
            limits=limits,
            default_adapter=self.policy.model.adapters[0],
            tool_format=tool_format,
            thinking=thinking,
            extra_eos_ids=self.policy.eos_ids,
            sessions=sessions,
        )
        return self.server.start()

    def put_behind(self, proxy: LLMProxy) -> None:
        """Let agents call `proxy`, which sends their calls on and records them with the server's token ids.

        Raises:
            RuntimeError: the policy is not served.
        """
        if self.server is None:
            raise RuntimeError("the policy is not served")
        address = {"base_url": self.server.endpoint, "api_key": self.server.admission.keys.first, "token_ids": "vllm"}
        proxy.update_model_list([{"model_name": name, **address} for name in self.model_names])
        self._proxy = proxy

    def prompt_counts(self) -> dict[str, int]:
        """Return the counts of prompts that continued, began or forked a conversation; see `ConversationMemory`.

        Raises:
            RuntimeError: the policy is not served.
        """
        if self.server is None:
            raise RuntimeError("the policy is not served")
        return self.server.service.memory.prompt_counts()

    async def learn_async(self, job: Callable[[], T], share: float = 0.0) -> T:
        """Run `Policy.learn_async` while the server holds new requests, unless sampling has a `share`."""
        if self.server is None or share > 0:
            return await self.policy.learn_async(job, share)
        self.server.pause()
        try:
            return await self.policy.learn_async(job)
        finally:
            self.server.resume()

    async def publish(self) -> None:
        """Publish changed weights to the sampler."""
        for adapter, version in self.policy.model.versions.items():
            changes = self.policy.engine.weight_changes[adapter]
            if self._published.get(adapter) != changes:
                await self.sampler.publish(adapter, version, partial(self.policy.save, adapter=adapter))
                self._published[adapter] = changes

    def close(self, drain_seconds: float = 5.0) -> None:
        """Stop the server, which gives running requests `drain_seconds`, then the sampler and the policy."""
        if self.server is not None:
            self.server.stop(drain_seconds)
        self.sampler.close()
        self.policy.close()
