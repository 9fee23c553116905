"""One model of one server of others: where it is, which fields it understands, and how a call of it may fail.

An upstream speaks OpenAI's chat completions: vLLM, SGLang, Ollama, DeepSeek, OpenAI and many more.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypedDict

import httpx

from ...errors import UserError
from ...http import BadRequestError, HttpError, json_object
from ...redaction import without_parts_of, without_secrets, without_those_of
from ...types import LLM

TokenIdFormat = Literal["vllm", "sglang"]
"""The way to ask a server for token ids. vLLM and MiniLLMServer: `return_token_ids`. SGLang refuses that in streams; it
tells ids in an extension of the answer (`sglext`), and older ones in the `meta_info` of a whole answer."""

_FORMATS: Final = {True: "vllm", False: None, None: None, "vllm": "vllm", "sglang": "sglang"}
_OF_VARIABLE: Final = "os.environ/"
_EXTENSIONS: Final = frozenset({"return_token_ids"})
"""Fields that agents may send to MiniLLMServer and that other servers need not know."""


class ModelConfig(TypedDict):
    """One entry of a model list in LiteLLM's form."""

    model_name: str
    """The name that agents ask for."""
    litellm_params: dict[str, Any]
    """Place and name of the model: `model`, `api_base`, `api_key`, and what else an `Upstream` has."""


@dataclass(frozen=True)
class Upstream:
    """One model of one server."""

    name: str
    """The name that agents ask for."""
    base_url: str = field(repr=False)
    """URL of the server, ending in /v1 as a rule; it may hold a user and a password."""
    model: str
    """The name that the server knows the model by."""
    api_key: str | None = field(default=None, repr=False)
    token_ids: TokenIdFormat | None = None
    """The way to ask it for token ids and log-probabilities; None where it tells none, so that its calls are recorded
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
                raise UserError(
                    f"{setting}={seconds} of {self.name!r}: expected seconds, more than 0", setting="model_list"
                )

    @classmethod
    def of(cls, entry: Upstream | Mapping[str, Any]) -> Upstream:
        """Read an entry of a model list: an `Upstream`, its fields, or LiteLLM's form with `litellm_params`.

        Raises:
            UserError: the entry does not say where its model is served, or a field has a value that cannot work.
        """
        if isinstance(entry, Upstream):
            return entry
        name = entry.get("model_name", entry.get("name"))
        fields = dict(entry.get("litellm_params") or entry)
        base_url = fields.get("api_base") or fields.get("base_url") or fields.get("endpoint")
        if not base_url and str(fields.get("model", "")).startswith("openai/"):
            base_url = os.environ.get("OPENAI_BASE_URL") or LLM.model_fields["endpoint"].default
            fields = {"api_key": os.environ.get("OPENAI_API_KEY"), **fields}
        if not name or not base_url:
            raise UserError(
                f"{sorted(entry)} needs model_name and the server's URL (base_url, or api_base inside litellm_params)",
                setting="model_list",
            )
        model = str(fields.get("model") or name)
        token_ids = fields.get("token_ids", model.startswith("hosted_vllm/"))
        if token_ids not in _FORMATS:
            raise UserError(
                f"token_ids={token_ids!r} of {name!r}: expected 'vllm', 'sglang' or False", setting="model_list"
            )
        for provider in ("openai/", "hosted_vllm/"):
            model = model.removeprefix(provider)
        return cls(
            name=str(name),
            base_url=str(base_url).rstrip("/"),
            model=model,
            api_key=_key(fields.get("api_key")),
            token_ids=_FORMATS[token_ids],
            timeout=fields.get("timeout"),
            connect_timeout=fields.get("connect_timeout"),
        )

    @property
    def shown_url(self) -> str:
        """Its URL as anybody may see it."""
        return without_secrets(self.base_url)

    def without_key(self, text: str) -> str:
        """Return what the server, or a library, says of a call as agents may see it: without the key, the user and the
        password that were sent with it, and without parts of them."""
        url = httpx.URL(self.base_url)
        text = without_those_of(self.base_url, text) if url.userinfo else without_secrets(text)
        for secret in (self.api_key or "", b64encode(url.userinfo).decode()):
            text = without_parts_of(secret, text)
        return text

    def body(self, chat: Mapping[str, Any], *, recorded: bool) -> dict[str, Any]:
        """Return a chat request as this server gets it: its own model name, and only fields that it knows.

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


def _key(text: str | None) -> str | None:
    """Return an API key; LiteLLM writes `os.environ/NAME` for that of a variable."""
    return os.environ.get(text.removeprefix(_OF_VARIABLE)) if text and text.startswith(_OF_VARIABLE) else text


_OF_THE_MODEL_LIST: Final = frozenset({401, 403, 404, 405})
_SHOWN_CHARACTERS: Final = 500
_LONGEST_MESSAGE: Final = 16_000
_LONGEST_NAME: Final = 200
MOST_REFUSAL_BYTES: Final = 64 * 1024
"""Most bytes that are read of an answer that refuses."""


class UpstreamUnreachableError(HttpError):
    """No server of this model could be reached."""

    status = 503


class UpstreamBrokenError(HttpError):
    """The server broke off its answer, or answered what is none."""

    status = 502


class UpstreamSilentError(HttpError):
    """Nothing was heard of the server for as long as it may be silent."""

    status = 504


class UpstreamRefusedError(HttpError):
    """The server refused the request: its own status and words, for the dialect that the agent speaks.

    The words say whose they are where they may be about the model list (the key, the URL or the model's name there),
    not about the request, and where they are no error object.

    Args:
        upstream: the server.
        answer: its answer; what of its body has come is read.
        content: that body.
    """

    def __init__(self, upstream: Upstream, answer: httpx.Response, content: bytes) -> None:
        try:
            told = json_object(content).get("error")
        except BadRequestError:
            told = None
        error = told if isinstance(told, dict) else {}
        message = error.get("message")
        if not isinstance(message, str) or answer.status_code in _OF_THE_MODEL_LIST:
            text = message if isinstance(message, str) else content.decode("utf-8", "replace")
            text = upstream.without_key(text)[:_SHOWN_CHARACTERS]
            message = (
                f"{upstream.shown_url} refused what it was asked for {upstream.name!r} of the model list with status "
                f"{answer.status_code}" + (f": {text}" if text else "")
            )
        param, code, kind = (_text(upstream, error.get(name)) for name in ("param", "code", "type"))
        super().__init__(
            upstream.without_key(message)[:_LONGEST_MESSAGE],
            param=param,
            code=code,
            kind=kind or ("server_error" if answer.status_code >= 500 else "invalid_request_error"),
        )
        self.status = answer.status_code
        pause = upstream.without_key(answer.headers.get("retry-after", ""))
        if pause and len(pause) <= _LONGEST_NAME and pause.isprintable() and pause.isascii():
            self.headers = {"Retry-After": pause}


def broken(upstream: Upstream, text: str, code: str | None = None) -> UpstreamBrokenError:
    """Return the error for an answer that broke off or is none; the text goes after the server's name."""
    return UpstreamBrokenError(f"{upstream.shown_url} {upstream.without_key(text)[:_LONGEST_MESSAGE]}", code=code)


def error_words(error: Any) -> str:
    """Return the words of an error within an answer that was begun as a good one."""
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else "without a message"


def _text(upstream: Upstream, value: Any) -> str | None:
    return upstream.without_key(str(value))[:_LONGEST_NAME] if isinstance(value, str | int | float) else None
