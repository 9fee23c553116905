"""A policy behind its own endpoint: what agents call while an algorithm trains or measures it."""

from __future__ import annotations

import logging
from typing import Any

from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..gateway.policy_backend import PolicyBackend
from ..gateway.server import MiniLLMServer
from ..policy import DEFAULT_ADAPTER, EngineSettings, ModelNotFoundError, Policy
from ..policy.load import resolve_model
from ..store.base import LightningStore

logger = logging.getLogger(__name__)


def load_tokenizer(model: str | PreTrainedModel, tokenizer: Any | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer that was given (an object, a folder or a hub id), or the one beside the model.

    Raises:
        ModelNotFoundError: there is none.
    """
    if tokenizer is not None and not isinstance(tokenizer, str):
        given: PreTrainedTokenizerBase = tokenizer
        return given
    source = tokenizer or (resolve_model(model) if isinstance(model, str) else model.name_or_path)
    if not source:
        raise ModelNotFoundError("a loaded model needs its tokenizer: MiniGRPO(model, tokenizer)")
    try:
        found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ModelNotFoundError(f"cannot load the tokenizer of {source!r}: {first}") from error
    return found


class ServedPolicy:
    """A policy, its tokenizer, and its server."""

    def __init__(self, policy: Policy, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
        self.policy = policy
        self.tokenizer = tokenizer
        self.name = name
        self.server: MiniLLMServer | None = None

    @classmethod
    def load(
        cls,
        model: str | PreTrainedModel,
        tokenizer: Any | None = None,
        *,
        engine: EngineSettings | None = None,
        **options: Any,
    ) -> ServedPolicy:
        """Load model and tokenizer; `options` are those of `load_model`."""
        name = model if isinstance(model, str) else (model.name_or_path or type(model).__name__)
        policy = Policy.load(model, engine=engine, **options)
        return cls(policy, load_tokenizer(model, tokenizer), name)

    def serve(
        self,
        *,
        store: LightningStore | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        api_key: str | None = None,
    ) -> MiniLLMServer:
        """Start the server; rollouts' calls are recorded in `store`."""
        backend = PolicyBackend(
            self.policy.engine,
            base_name=f"{self.name}-base",
            adapters=[DEFAULT_ADAPTER],
            context_length=self.policy.model.context_length,
        )
        self.server = MiniLLMServer(
            backend,
            self.tokenizer,
            model_name=self.name,
            host=host,
            port=port,
            store=store,
            api_key=api_key,
            default_adapter=DEFAULT_ADAPTER,
            extra_eos_ids=self._generation_eos_ids(),
        )
        return self.server.start()

    def close(self) -> None:
        """Stop serving, then sampling."""
        if self.server is not None:
            self.server.stop()
        self.policy.close()

    def _generation_eos_ids(self) -> list[int]:
        config = self.policy.model.base.generation_config
        eos = None if config is None else config.eos_token_id
        if eos is None:
            return []
        return list(eos) if isinstance(eos, list | tuple) else [int(eos)]
