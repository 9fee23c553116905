"""The servers of others: where each model is, which server gets a request, retries, and how a call may fail.

An upstream speaks OpenAI's chat completions: vLLM, SGLang, Ollama, DeepSeek, OpenAI and many more.

The calls of a rollout go to one server, whose prefix cache holds what they have in common. Servers are ranked for each
rollout by a hash of both (rendezvous hashing: Thaler and Ravishankar 1998), so that rollouts spread evenly, and only
those of a server that fails move, each to the next in its own ranking. A server that could not be reached is passed
over for a while. Nothing is sent again once an answer has begun, or after a server was silent for as long as it may be.
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
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal, TypedDict

import httpx

from ...attribution import unrecorded
from ...errors import UserError
from ...http import LARGE, BadRequestError, HttpError, encode_in_steps, json_object, off_loop, size_of
from ...redaction import without_parts_of, without_secrets, without_those_of
from ...types import LLM
from ..errors import UnknownModelError
from .reading import ACCEPTED

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
MAX_REFUSAL_BYTES: Final = 64 * 1024
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
            body_error = json_object(content).get("error")
        except BadRequestError:
            body_error = None
        error = body_error if isinstance(body_error, dict) else {}
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


def error_text(error: Any) -> str:
    """Return the words of an error within an answer that was begun as a good one."""
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else "without a message"


def _text(upstream: Upstream, value: Any) -> str | None:
    return upstream.without_key(str(value))[:_LONGEST_NAME] if isinstance(value, str | int | float) else None


DOWN_SECONDS: Final = 10.0
"""For how long a server that could not be reached is asked last."""


class Replicas:
    """All servers, by the names of their models. Used from one event loop once requests come.

    Args:
        entries: see `Upstream.of`; several of one name are servers of the same model.
        clock: seconds that never go back.

    Raises:
        UserError: an entry does not say where its model is served, or one server is there twice.
    """

    def __init__(
        self, entries: Iterable[Upstream | Mapping[str, Any]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._by_name: dict[str, list[Upstream]] = {}
        self._down_until: dict[str, float] = {}
        self._turn = 0
        for upstream in map(Upstream.of, entries):
            servers = self._by_name.setdefault(upstream.name, [])
            if any(known.base_url == upstream.base_url for known in servers):
                raise UserError(f"{upstream.name!r} stands at {upstream.shown_url} twice", setting="model_list")
            servers.append(upstream)

    @property
    def names(self) -> list[str]:
        """Names that may be asked for, in the order given."""
        return list(self._by_name)

    def servers(self, name: str) -> Sequence[Upstream]:
        """Return those of this model, in the order given; none if there is no such model."""
        return self._by_name.get(name, [])

    def ranked(self, name: str, rollout_id: str | None) -> list[Upstream]:
        """Return the servers of a model, best first; calls outside of any rollout take turns. Those down come last."""
        servers = self.servers(name)
        if rollout_id is None and servers:
            self._turn += 1
            first = self._turn % len(servers)
            ranked = [*servers[first:], *servers[:first]]
        else:
            ranked = sorted(servers, key=lambda server: _weight(server.base_url, rollout_id or ""))
        return sorted(ranked, key=self.is_down)

    def is_down(self, server: Upstream) -> bool:
        """Return True if it could not be reached a short while ago."""
        return self._down_until.get(server.base_url, 0.0) > self._clock()

    def mark_down(self, server: Upstream, seconds: float = DOWN_SECONDS) -> None:
        """Ask it last for a while."""
        self._down_until[server.base_url] = self._clock() + seconds

    def mark_up(self, server: Upstream) -> None:
        """Ask it as any other again: it has answered."""
        self._down_until.pop(server.base_url, None)

    def up(self) -> dict[str, float]:
        """Return, for each server's URL, 1 if it is taken to be there, else 0."""
        servers = [server for group in self._by_name.values() for server in group]
        return {server.shown_url: float(not self.is_down(server)) for server in servers}


def _weight(base_url: str, rollout_id: str) -> bytes:
    return hashlib.blake2b(f"{rollout_id}\n{base_url}".encode("utf-8", "replace"), digest_size=8).digest()


RETRIED_STATUSES: Final = frozenset({408, 429, 500, 502, 503, 504})
AWAY_STATUSES: Final = frozenset({502, 503, 504})
"""Of these, those that say that another server may do better."""
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 20.0


class Upstreams:
    """All upstreams, and one pool of connections to them. Used from one event loop once requests come.

    Args:
        entries: see `Replicas`.
        num_retries: how often a request is sent again after a failed connection or an answer of 408, 429 or 5xx; going
            on to another server of the same model at once does not count.
        timeout: seconds that an upstream may be silent.
        connect_timeout: seconds within which a connection has to be made.

    Raises:
        UserError: an entry does not say where its model is served, or one server is there twice.
        ValueError: a negative number of retries, or a timeout that is not positive.
    """

    def __init__(
        self,
        entries: Iterable[Upstream | Mapping[str, Any]],
        *,
        num_retries: int,
        timeout: float,
        connect_timeout: float = 5.0,
    ) -> None:
        if num_retries < 0:
            raise ValueError(f"num_retries={num_retries}: expected 0 or more")
        for setting, seconds in (("timeout", timeout), ("connect_timeout", connect_timeout)):
            if seconds <= 0:
                raise ValueError(f"{setting}={seconds}: expected seconds, more than 0")
        self.replicas = Replicas(entries)
        self.sent: Counter[tuple[str, ...]] = Counter()
        """Tries by server URL and outcome: `answered`, `refused` (4xx, 5xx), `unreachable`, `silent`."""
        self._num_retries = num_retries
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._client: httpx.AsyncClient | None = None
        self._client_loop: asyncio.AbstractEventLoop | None = None

    def replace(self, entries: Iterable[Upstream | Mapping[str, Any]]) -> None:
        """Serve these from now on; callable from any thread.

        Raises:
            UserError: as the constructor; then nothing changes.
        """
        self.replicas = Replicas(entries)

    @property
    def names(self) -> list[str]:
        """Names that may be asked for, in the order given."""
        return self.replicas.names

    async def send(
        self, name: str, path: str, body: Callable[[Upstream], dict[str, Any]], rollout_id: str | None = None
    ) -> tuple[Upstream, httpx.Response]:
        """Send a request; return the server and its answer, whose body is still to be read: close it with `aclose`.

        Args:
            name: the model.
            path: below the server's URL.
            body: the request as a server gets it.
            rollout_id: whose calls go to one server as long as that is there.

        Raises:
            UnknownModelError: there is no such model.
            UpstreamUnreachableError: no server of it could be reached, however often it was tried.
            UpstreamSilentError: a server took the request and said nothing.
        """
        replicas = self.replicas
        if not replicas.servers(name):
            raise UnknownModelError(name, self.names)
        retries = 0
        tried: set[str] = set()
        while True:
            server = replicas.ranked(name, rollout_id)[0]
            tried.add(server.base_url)
            answer: httpx.Response | None = None
            failure = ""
            try:
                answer = await self._send(server, path, body(server))
            except httpx.TransportError as error:
                failure = server.without_key(f"{type(error).__name__}: {error}")
                replicas.mark_down(server)
            asked_pause = None if answer is None else _asked_pause(answer)
            if answer is not None:
                if answer.status_code not in RETRIED_STATUSES:
                    replicas.mark_up(server)
                    return server, answer
                if answer.status_code in AWAY_STATUSES:
                    replicas.mark_down(server, asked_pause or DOWN_SECONDS)
            elsewhere = replicas.ranked(name, rollout_id)[0]
            moves_on = elsewhere.base_url not in tried and not replicas.is_down(elsewhere)
            if not moves_on and retries == self._num_retries:
                if answer is not None:
                    return server, answer
                raise UpstreamUnreachableError(
                    f"{server.shown_url} does not answer for model {name!r}: {failure}", code="upstream_unavailable"
                )
            if answer is not None:
                await answer.aclose()
            if not moves_on:
                await asyncio.sleep(_pause(retries, asked_pause))
                retries += 1

    async def _send(self, server: Upstream, path: str, body: dict[str, Any]) -> httpx.Response:
        headers = {"content-type": "application/json", "accept-encoding": ACCEPTED}
        if server.api_key is not None:
            headers["authorization"] = f"Bearer {server.api_key}"
        silence = server.timeout or self._timeout
        timeout = httpx.Timeout(silence, connect=server.connect_timeout or self._connect_timeout, pool=None)
        pool = self._pool()
        url = httpx.URL(f"{server.base_url}{path}")
        # what httpx logs has no password: it is told beside the URL
        auth = httpx.BasicAuth(url.username, url.password) if url.userinfo else None
        content = await off_loop(size_of(body, LARGE), lambda: encode_in_steps(body))
        request = pool.build_request(
            "POST", url.copy_with(userinfo=b""), content=content, headers=headers, timeout=timeout
        )
        try:
            with unrecorded():  # the call was recorded here, or is of nobody
                answer = await pool.send(request, stream=True, auth=auth)
        except httpx.ReadTimeout as error:
            self.sent[server.shown_url, "silent"] += 1
            raise silent(server, silence) from error
        except httpx.TransportError:
            self.sent[server.shown_url, "unreachable"] += 1
            raise
        self.sent[server.shown_url, "refused" if answer.is_error else "answered"] += 1
        return answer

    def silence(self, server: Upstream) -> float:
        """Return the seconds that a server may be silent."""
        return server.timeout or self._timeout

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def _pool(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._client is None or self._client_loop is not loop:  # connections die with the loop of a server
            self._client_loop = loop
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            self._client = httpx.AsyncClient(limits=limits)
        return self._client


def silent(server: Upstream, seconds: float) -> UpstreamSilentError:
    """Return the error for a server that says nothing."""
    return UpstreamSilentError(
        f"{server.shown_url} said nothing for {seconds:g} seconds (timeout) for model {server.name!r}",
        code="upstream_timeout",
    )


def _pause(retries: int, asked: float | None) -> float:
    """Return the seconds before the next try: what the server asked for, else twice as long each time, with jitter."""
    if asked is not None:
        return asked
    return min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0**retries) * random.uniform(0.5, 1.0)


def _asked_pause(answer: httpx.Response) -> float | None:
    """Return what `Retry-After` says, in seconds or as a date; None where it says nothing that can be read."""
    text = answer.headers.get("retry-after", "")
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, OverflowError, OSError):  # no date, or one that no clock tells
            return None
    return min(_LONGEST_PAUSE_SECONDS, max(0.0, seconds))
