"""One model of one server of others: where it is, what it is called there, and which fields it understands.

An upstream speaks OpenAI's chat completions: vLLM, SGLang, Ollama, DeepSeek, OpenAI and many more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from mini_agentic_rl.errors import UserError

TokenIdForm = Literal["vllm", "sglang"]
"""How a server is asked for token ids. vLLM and MiniLLMServer: `return_token_ids`. SGLang refuses that in streams; it
tells ids in an extension of the answer (`sglext`), and older ones in the `meta_info` of an answer in one piece."""

_FORMS: Final = {True: "vllm", False: None, None: None, "vllm": "vllm", "sglang": "sglang"}
_EXTENSIONS: Final = frozenset({"return_token_ids"})
"""Fields that agents may send to MiniLLMServer and that other servers need not know."""


@dataclass(frozen=True)
class Upstream:
    """One model of one server."""

    name: str
    """The name that agents ask for."""
    base_url: str
    """URL of the server, ending in /v1 as a rule."""
    model: str
    """The name that the server knows the model by."""
    api_key: str | None = field(default=None, repr=False)
    token_ids: TokenIdForm | None = None
    """How it is asked for token ids and log-probabilities; None where it tells none, so that its calls are recorded
    with their messages alone. (vLLM has to be started with `--logprobs-mode processed_logprobs` wherever the
    temperature is not 1: training needs the log-probabilities of what was drawn from.)"""
    timeout: float | None = None
    """Seconds that it may be silent; None takes the proxy's."""
    connect_timeout: float | None = None
    """Seconds within which a connection has to be made; None takes the proxy's."""

    def __post_init__(self) -> None:
        for setting in ("timeout", "connect_timeout"):
            seconds = getattr(self, setting)
            if seconds is not None and seconds <= 0:
                raise UserError(f"model_list: {setting}={seconds} of {self.name!r}: expected seconds, more than 0")

    @classmethod
    def of(cls, entry: Upstream | Mapping[str, Any]) -> Upstream:
        """An entry of a model list: an `Upstream`, its fields, or LiteLLM's form with `litellm_params`.

        Raises:
            UserError: the entry does not say where its model is served, or a field has a value that cannot work.
        """
        if isinstance(entry, Upstream):
            return entry
        name = entry.get("model_name", entry.get("name"))
        places = dict(entry.get("litellm_params") or entry)
        base_url = places.get("api_base") or places.get("base_url") or places.get("endpoint")
        if not name or not base_url:
            raise UserError(
                f"model_list: {sorted(entry)} needs model_name and the server's URL (base_url, or api_base inside "
                "litellm_params)"
            )
        model = str(places.get("model") or name)
        token_ids = places.get("token_ids", model.startswith("hosted_vllm/"))
        if token_ids not in _FORMS:
            raise UserError(f"model_list: token_ids={token_ids!r} of {name!r}: expected 'vllm', 'sglang' or False")
        for provider in ("openai/", "hosted_vllm/"):
            model = model.removeprefix(provider)
        return cls(
            name=str(name),
            base_url=str(base_url).rstrip("/"),
            model=model,
            api_key=places.get("api_key"),
            token_ids=_FORMS[token_ids],
            timeout=places.get("timeout"),
            connect_timeout=places.get("connect_timeout"),
        )

    def body(self, chat: Mapping[str, Any], *, recorded: bool) -> dict[str, Any]:
        """A chat request as this server gets it: its own model name, and only fields that it knows.

        Args:
            chat: the request as the agent made it.
            recorded: whether the call is recorded, so that its tokens are wanted.
        """
        body = {key: value for key, value in chat.items() if self.token_ids == "vllm" or key not in _EXTENSIONS}
        body["model"] = self.model
        if recorded and self.token_ids == "vllm":
            body |= {"return_token_ids": True, "logprobs": True}
        elif recorded and self.token_ids == "sglang":
            body |= {"return_input_ids": True, "return_output_ids": True, "logprobs": True}
            if not chat.get("stream"):
                body |= {"return_prompt_token_ids": True, "return_meta_info": True}
        return body
