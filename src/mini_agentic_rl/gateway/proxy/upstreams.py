"""Upstream servers: the model list, the choice of a server for each request, retries, and errors.

An upstream serves OpenAI's chat completions: vLLM, SGLang, Ollama, DeepSeek, OpenAI and many more.

The calls of a rollout go to one server, because of its prefix cache. Each rollout ranks the servers by a hash of both
(rendezvous hashing: Thaler and Ravishankar 1998). So rollouts spread evenly, and if a server fails, only its rollouts
move, each to the next server in its ranking. An unreachable server is ranked last for a while. A request is not sent
again once an answer has begun, or after a server was silent for its whole timeout.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypedDict

import httpx

from ...attribution import unrecorded
from ...errors import UserError
from ...http import LARGE, BadRequestError, HttpError, encode_in_steps, json_object, off_loop, size_of
from ...key_header import bearer_header
from ...redaction import without_parts_of, without_secrets, without_those_of
from ...types import LLM
from ..errors import UnknownModelError

TokenIdFormat = Literal["vllm", "sglang"]
"""How a server reports token ids. vLLM and MiniLLMServer: `return_token_ids`. SGLang refuses this in streams; it has
them in an extension of the answer (`sglext`), older versions in the `meta_info` of a whole answer."""

_FORMATS: Final = {True: "vllm", False: None, None: None, "vllm": "vllm", "sglang": "sglang"}
_VARIABLE_PREFIX: Final = "os.environ/"
_EXTENSIONS: Final = frozenset({"return_token_ids"})
"""Fields of MiniLLMServer that other servers may not know."""


class ModelConfig(TypedDict):
    """One entry of a model list in LiteLLM's form."""

    model_name: str
    """Name of the model for agents."""
    litellm_params: dict[str, Any]
    """`model`, `api_base`, `api_key`, and further fields of an `Upstream`."""


@dataclass(frozen=True)
class Upstream:
    """One model of one server."""

    name: str
    """Name of the model for agents."""
    base_url: str = field(repr=False)
    """URL of the server, usually ending in /v1; it may contain user and password."""
    model: str
    """Name of the model at the server."""
    api_key: str | None = field(default=None, repr=False)
    token_ids: TokenIdFormat | None = None
    """How the server reports token ids and log-probabilities; with None calls are recorded with their messages alone.
    (Start vLLM with `--logprobs-mode processed_logprobs` unless the temperature is 1: training needs the
    log-probabilities of the distribution that was sampled.)"""
    timeout: float | None = None
    """Seconds without data after which it has failed; None takes the proxy's."""

    def __post_init__(self) -> None:
        bearer_header(self.api_key)  # an error of a bad key comes before any call
        if self.timeout is not None and self.timeout <= 0:
            raise UserError(
                f"timeout={self.timeout} of {self.name!r}: expected seconds, more than 0", setting="model_list"
            )

    @classmethod
    def of(cls, entry: Upstream | Mapping[str, Any]) -> Upstream:
        """Read an entry of a model list: an `Upstream`, its fields, or LiteLLM's form with `litellm_params`.

        Raises:
            UserError: the entry has no URL, or a field has a bad value.
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
        api_key = fields.get("api_key")
        if api_key and api_key.startswith(_VARIABLE_PREFIX):
            api_key = os.environ.get(api_key.removeprefix(_VARIABLE_PREFIX))
        return cls(
            name=str(name),
            base_url=str(base_url).rstrip("/"),
            model=model,
            api_key=api_key,
            token_ids=_FORMATS[token_ids],
            timeout=fields.get("timeout"),
        )

    @property
    def shown_url(self) -> str:
        """The URL without secrets."""
        return without_secrets(self.base_url)

    def without_key(self, text: str) -> str:
        """Return a message about a call without the key, user and password, and without parts of them."""
        url = httpx.URL(self.base_url)
        text = without_those_of(self.base_url, text) if url.userinfo else without_secrets(text)
        for secret in (self.api_key or "", b64encode(url.userinfo).decode()):
            text = without_parts_of(secret, text)
        return text

    def body(self, chat: Mapping[str, Any], *, recorded: bool) -> dict[str, Any]:
        """Return the body that is sent to this server: with its model name, and only fields that it knows.

        Args:
            chat: the chat request.
            recorded: request token ids and log-probabilities for the record.
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


_MODEL_LIST_STATUSES: Final = frozenset({401, 403, 404, 405})
_SHOWN_CHARACTERS: Final = 500
_LONGEST_MESSAGE: Final = 16_000
_LONGEST_NAME: Final = 200
MAX_REFUSAL_BYTES: Final = 64 * 1024
"""Bytes that are read of a refusal."""


class UpstreamError(HttpError):
    """The server cannot be reached (503), sent nothing for its whole timeout (504), or sent a broken answer (502).

    Args:
        upstream: the server.
        problem: what it did; continues a sentence that starts with the server.
        status: status of the response.
        code: name of the error for programs.
    """

    def __init__(self, upstream: Upstream, problem: str, status: int = 502, code: str | None = None) -> None:
        message = f"{upstream.shown_url} {upstream.without_key(problem)[:_LONGEST_MESSAGE]}"
        super().__init__(message, code=code, status=status)


class UpstreamRefusedError(HttpError):
    """The server refused the request; the error has its status and message.

    The message names the server if it may be about the model list (key, URL or model name) and not about the request,
    or if it is not an error object.

    Args:
        upstream: the server.
        answer: its answer.
        content: the beginning of the body.
    """

    def __init__(self, upstream: Upstream, answer: httpx.Response, content: bytes) -> None:
        try:
            body_error = json_object(content).get("error")
        except BadRequestError:
            body_error = None
        error = body_error if isinstance(body_error, dict) else {}
        message = error.get("message")
        if not isinstance(message, str) or answer.status_code in _MODEL_LIST_STATUSES:
            text = message if isinstance(message, str) else content.decode("utf-8", "replace")
            text = upstream.without_key(text)[:_SHOWN_CHARACTERS]
            message = (
                f"{upstream.shown_url} refused a request for {upstream.name!r} of the model list with status "
                f"{answer.status_code}" + (f": {text}" if text else "")
            )
        named = {
            name: upstream.without_key(str(error[name]))[:_LONGEST_NAME]
            for name in ("param", "code", "type")
            if isinstance(error.get(name), str | int | float)
        }
        pause = upstream.without_key(answer.headers.get("retry-after", ""))
        sendable = pause and len(pause) <= _LONGEST_NAME and pause.isprintable() and pause.isascii()
        super().__init__(
            upstream.without_key(message)[:_LONGEST_MESSAGE],
            param=named.get("param"),
            code=named.get("code"),
            kind=named.get("type") or ("server_error" if answer.status_code >= 500 else "invalid_request_error"),
            status=answer.status_code,
            headers={"Retry-After": pause} if sendable else None,
        )


DOWN_SECONDS: Final = 10.0
"""Seconds for which an unreachable server is ranked last."""
RETRIED_STATUSES: Final = frozenset({408, 429, 500, 502, 503, 504})
AWAY_STATUSES: Final = frozenset({502, 503, 504})
"""The retried statuses after which another server is tried at once."""
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 20.0
_CONNECT_SECONDS: Final = 5.0


class Upstreams:
    """The servers by the names of their models, with a pool of connections. Used from one event loop.

    Args:
        entries: see `Upstream.of`; several entries of one name are replicas.
        num_retries: retries after a failed connection or a status of 408, 429 or 5xx; switching to another server of
            the model does not count.
        timeout: seconds without data after which an upstream has failed.
        clock: a monotonic clock in seconds.

    Raises:
        UserError: an entry has no URL, or a server is there twice.
        ValueError: `num_retries` is negative, or `timeout` is not positive.
    """

    def __init__(
        self,
        entries: Iterable[Upstream | Mapping[str, Any]],
        *,
        num_retries: int = 2,
        timeout: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if num_retries < 0:
            raise ValueError(f"num_retries={num_retries}: expected 0 or more")
        if timeout <= 0:
            raise ValueError(f"timeout={timeout}: expected seconds, more than 0")
        self.servers: dict[str, list[Upstream]] = {}
        """The servers of each model, in the order of the model list."""
        self.sent: Counter[tuple[str, ...]] = Counter()
        """Tries by server URL and outcome: `answered`, `refused` (4xx, 5xx), `unreachable`, `silent`."""
        self._num_retries = num_retries
        self._timeout = timeout
        self._clock = clock
        self._down_until: dict[str, float] = {}
        self._turn = 0
        self._client: httpx.AsyncClient | None = None
        self._client_loop: asyncio.AbstractEventLoop | None = None
        self.replace(entries)

    def replace(self, entries: Iterable[Upstream | Mapping[str, Any]]) -> None:
        """Replace the model list; callable from any thread. Raises UserError as the constructor does."""
        by_name: dict[str, list[Upstream]] = {}
        for upstream in map(Upstream.of, entries):
            servers = by_name.setdefault(upstream.name, [])
            if any(known.base_url == upstream.base_url for known in servers):
                raise UserError(f"{upstream.name!r} is listed twice at {upstream.shown_url}", setting="model_list")
            servers.append(upstream)
        self.servers = by_name

    def ranked(self, servers: Sequence[Upstream], rollout_id: str | None) -> list[Upstream]:
        """Return the servers of a model, best first and unreachable ones last. Calls outside of rollouts alternate."""
        if rollout_id is None:
            self._turn += 1
            first = self._turn % len(servers)
            ranked = [*servers[first:], *servers[:first]]
        else:
            keys = {s.base_url: f"{rollout_id}\n{s.base_url}".encode("utf-8", "replace") for s in servers}
            ranked = sorted(servers, key=lambda s: hashlib.blake2b(keys[s.base_url], digest_size=8).digest())
        return sorted(ranked, key=self.is_down)

    def is_down(self, server: Upstream) -> bool:
        """Return True if the server was unreachable a short while ago."""
        return self._down_until.get(server.base_url, 0.0) > self._clock()

    def mark_down(self, server: Upstream, seconds: float = DOWN_SECONDS) -> None:
        """Rank the server last for a while; 0 seconds rank it as usual again."""
        self._down_until[server.base_url] = self._clock() + seconds

    async def send(
        self, name: str, body: Callable[[Upstream], dict[str, Any]], rollout_id: str | None = None
    ) -> tuple[Upstream, httpx.Response]:
        """Send a chat request; return the server and its answer, whose body is not read yet: close it with `aclose`.

        Args:
            name: the model.
            body: returns the body for a server.
            rollout_id: the rollout, whose calls go to the same server.

        Raises:
            UnknownModelError: there is no such model.
            UpstreamError: no server of the model could be reached, or one accepted the request and sent nothing.
        """
        servers = self.servers.get(name)
        if not servers:
            raise UnknownModelError(name, list(self.servers))
        retries = 0
        tried: set[str] = set()
        while True:
            server = self.ranked(servers, rollout_id)[0]
            tried.add(server.base_url)
            answer: httpx.Response | None = None
            failure = ""
            try:
                answer = await self._send(server, body(server))
            except httpx.TransportError as error:
                failure = f"{type(error).__name__}: {error}"
                self.mark_down(server)
            requested_pause = None if answer is None else _requested_pause(answer)
            if answer is not None:
                if answer.status_code not in RETRIED_STATUSES:
                    self.mark_down(server, 0.0)
                    return server, answer
                if answer.status_code in AWAY_STATUSES:
                    self.mark_down(server, requested_pause or DOWN_SECONDS)
            elsewhere = self.ranked(servers, rollout_id)[0]
            moves_on = elsewhere.base_url not in tried and not self.is_down(elsewhere)
            if not moves_on and retries == self._num_retries:
                if answer is not None:
                    return server, answer
                problem = f"does not answer for model {name!r}: {failure}"
                raise UpstreamError(server, problem, 503, "upstream_unavailable")
            if answer is not None:
                await answer.aclose()
            if not moves_on:
                await asyncio.sleep(_pause(retries, requested_pause))
                retries += 1

    async def _send(self, server: Upstream, body: dict[str, Any]) -> httpx.Response:
        headers = {b"content-type": b"application/json", b"accept-encoding": b"gzip, identity"}
        headers |= bearer_header(server.api_key)
        timeout = httpx.Timeout(server.timeout or self._timeout, connect=_CONNECT_SECONDS, pool=None)
        loop = asyncio.get_running_loop()
        if self._client is None or self._client_loop is not loop:  # connections belong to the loop of a server
            self._client_loop = loop
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            self._client = httpx.AsyncClient(limits=limits)
        pool = self._client
        url = httpx.URL(f"{server.base_url}/chat/completions")
        # httpx logs the URL, so the password is passed apart
        auth = httpx.BasicAuth(url.username, url.password) if url.userinfo else None
        content = await off_loop(size_of(body, LARGE), lambda: encode_in_steps(body))
        request = pool.build_request(
            "POST", url.copy_with(userinfo=b""), content=content, headers=headers, timeout=timeout
        )
        try:
            with unrecorded():  # the call is recorded here, or not at all
                answer = await pool.send(request, stream=True, auth=auth)
        except httpx.ReadTimeout as error:
            self.sent[server.shown_url, "silent"] += 1
            raise self.silent(server) from error
        except httpx.TransportError:
            self.sent[server.shown_url, "unreachable"] += 1
            raise
        self.sent[server.shown_url, "refused" if answer.is_error else "answered"] += 1
        return answer

    def silent(self, server: Upstream) -> UpstreamError:
        """Return the error for a server that sent nothing for its whole timeout."""
        seconds = server.timeout or self._timeout
        problem = f"sent nothing for {seconds:g} seconds (timeout) for model {server.name!r}"
        return UpstreamError(server, problem, 504, "upstream_timeout")

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None


def _pause(retries: int, requested: float | None) -> float:
    """Return the seconds before the next try: as the server requests, else exponential back-off with jitter."""
    if requested is not None:
        return requested
    return min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0**retries) * random.uniform(0.5, 1.0)


def _requested_pause(answer: httpx.Response) -> float | None:
    """Return the seconds of `Retry-After`; None if it is missing, or no number."""
    try:
        seconds = float(answer.headers.get("retry-after", ""))
    except ValueError:
        return None
    return min(_LONGEST_PAUSE_SECONDS, max(0.0, seconds))
