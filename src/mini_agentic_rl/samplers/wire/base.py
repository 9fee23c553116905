"""Requests to a server of any kind, and its answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from ...http import parse_json
from ...tokens import FinishReason, SamplingParams

_SHOWN: Final = 300
"""Characters of a server's complaint that are handed on."""


class ReplicaLostError(Exception):
    """The server cannot be reached, has broken off, or says that it is at fault itself."""


class WeightsMissingError(ReplicaLostError):
    """The server has no weights of the name that was asked for: it was started anew, or has dropped them."""


class RequestRefusedError(Exception):
    """The server finds fault with the request.

    Args:
        status: HTTP status.
        text: its complaint.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status
        self.text = text


@dataclass(frozen=True)
class Facts:
    """A server, by its own account."""

    model: str
    """Name of its base model in requests."""
    root: str
    """Folder or id that it has loaded the base model from."""
    context_length: int
    """The most tokens that a prompt and its continuation may have together there."""
    adapters: frozenset[str] = frozenset()
    """Names of the adapters that it has loaded."""


@dataclass(frozen=True)
class Generation:
    """One continuation to ask a server for."""

    model: str
    """Name of the base model."""
    adapter: str | None
    """Name of a loaded adapter; None is the base model."""
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    salt: str
    """Keys of the prefix cache are shared with requests of the same salt only."""
    at_a_time: int = 1
    """Tokens that may wait for each other on the way."""


@dataclass(frozen=True)
class TokenChunk:
    """Tokens of a continuation, as they come."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    """Likeliest (id, log-probability) pairs of each position, best first; empty unless asked for."""
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache, where the server tells."""


class Wire(ABC):
    """Speaks with one server. Each call ends by itself, or by the time limit of the client.

    All raise `ReplicaLostError` where the server does not answer, and `RequestRefusedError` where it refuses.

    Args:
        client: connects to the server.
    """

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def health(self) -> None:
        """Return if the server says that it is well."""
        await ask(self.client, "GET", "/health", seconds=10.0)

    async def facts(self) -> Facts:
        """Return what the server says of itself."""
        return await served_models(self.client)

    @abstractmethod
    def stream(self, generation: Generation) -> AsyncGenerator[TokenChunk, None]:
        """Sample a continuation; closing the generator ends it there as well. The last chunk has a finish reason.

        Raises:
            WeightsMissingError: the adapter is not loaded.
        """

    @abstractmethod
    async def load_adapter(self, name: str, folder: Path) -> None:
        """Load an adapter from a folder that the server sees under the same path."""

    @abstractmethod
    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter; one that is not there is no error."""

    @abstractmethod
    async def load_weights(self, folder: Path) -> None:
        """Replace all weights by those of a folder, and forget all cached keys. Nothing may be under way."""


async def ask(
    client: httpx.AsyncClient,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    seconds: float = 30.0,
    refuses: bool = False,
) -> httpx.Response:
    """Return the answer to a request that is not streamed.

    Args:
        refuses: whether status 500 is a refusal as well, because the server takes the fault of what it is given for
            its own.

    Raises:
        ReplicaLostError: there is none in time, or the server says that it is at fault.
        RequestRefusedError: the server refuses.
    """
    try:
        answer = await client.request(method, path, json=body, timeout=seconds)
    except (httpx.HTTPError, OSError) as error:
        raise ReplicaLostError(f"{path}: {_told(error)}") from error
    if refuses and answer.status_code == httpx.codes.INTERNAL_SERVER_ERROR:
        raise RequestRefusedError(answer.status_code, complaint(answer.text))
    refuse(answer.status_code, answer.text)
    return answer


async def served_models(client: httpx.AsyncClient) -> Facts:
    """Return what a server says under `/v1/models`: its base model, and the adapters that it has loaded.

    Raises:
        ReplicaLostError: it names no base model, or does not answer.
    """
    cards = json_of(await ask(client, "GET", "/v1/models"))["data"]
    base = next((card for card in cards if not card.get("parent")), None)
    if base is None:
        raise ReplicaLostError("/v1/models names no base model")
    return Facts(
        model=base["id"],
        root=base.get("root") or base["id"],
        context_length=int(base.get("max_model_len") or 0),
        adapters=frozenset(card["id"] for card in cards if card.get("parent")),
    )


def json_of(answer: httpx.Response) -> Any:
    """Return the JSON value of an answer.

    Raises:
        ReplicaLostError: it is none.
    """
    try:
        return answer.json()
    except ValueError as error:
        raise ReplicaLostError(f"{answer.request.url.path} answers what is no JSON") from error


@asynccontextmanager
async def events(client: httpx.AsyncClient, path: str, body: Mapping[str, Any]) -> AsyncIterator[AsyncIterator[Any]]:
    """Post a request whose answer is a stream of server-sent events; give their JSON values up to the last.

    Leaving early closes the connection, by which the server learns that nobody waits any more.

    Raises:
        ReplicaLostError: the stream breaks off, or the server says that it is at fault.
        RequestRefusedError: the server refuses.
    """
    try:
        async with client.stream("POST", path, json=body) as answer:
            if answer.status_code != httpx.codes.OK:
                refuse(answer.status_code, (await answer.aread()).decode(errors="replace"))
            yield _values(answer, path)
    except (httpx.HTTPError, OSError) as error:
        raise ReplicaLostError(f"{path}: {_told(error)}") from error


async def _values(answer: httpx.Response, path: str) -> AsyncIterator[Any]:
    async for line in answer.aiter_lines():
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            return
        value = parse_json(data)
        if isinstance(value, dict) and "error" in value:
            raise ReplicaLostError(f"{path}: {complaint(data)}")
        yield value


def refuse(status: int, text: str) -> None:
    """Raise the error of an answer that is none.

    Raises:
        ReplicaLostError: the server says that it is at fault, or is busy.
        RequestRefusedError: the server refuses.
    """
    if status >= httpx.codes.INTERNAL_SERVER_ERROR or status == httpx.codes.TOO_MANY_REQUESTS:
        raise ReplicaLostError(f"status {status}: {complaint(text)}")
    if status >= httpx.codes.BAD_REQUEST:
        raise RequestRefusedError(status, complaint(text))


def complaint(text: str) -> str:
    """Return what an error body says, in one line."""
    try:
        value = parse_json(text)
    except ValueError:
        value = text
    while isinstance(value, dict):
        value = next((value[key] for key in ("error", "message", "detail") if value.get(key)), str(value))
    return " ".join(str(value).split())[:_SHOWN]


def _told(error: Exception) -> str:
    return str(error) or type(error).__name__
