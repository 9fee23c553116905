"""Servers of others behind the gateway: which model name is answered where, and how a request gets there.

An upstream speaks OpenAI's chat completions: vLLM, SGLang, Ollama, DeepSeek, OpenAI and many more.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from mini_agentic_rl.errors import UserError

from ..dialects.base import json_object
from ..errors import BadRequestError, NotFoundError, UnavailableError

RETRIED_STATUSES: Final = frozenset({408, 429, 500, 502, 503, 504})
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 20.0


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
    token_ids: bool = False
    """Ask it for token ids and log-probabilities (`return_token_ids`, as vLLM and MiniLLMServer understand it)."""

    @classmethod
    def of(cls, entry: Upstream | Mapping[str, Any]) -> Upstream:
        """An entry of a model list: an `Upstream`, its fields, or LiteLLM's form with `litellm_params`.

        Raises:
            UserError: the entry does not say where its model is served.
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
        for provider in ("openai/", "hosted_vllm/"):
            model = model.removeprefix(provider)
        return cls(
            name=str(name),
            base_url=str(base_url).rstrip("/"),
            model=model,
            api_key=places.get("api_key"),
            token_ids=bool(places.get("token_ids", str(places.get("model")).startswith("hosted_vllm/"))),
        )


class Upstreams:
    """All upstreams, and one pool of connections to them. Used from one event loop once requests come.

    Args:
        entries: see `Upstream.of`.
        num_retries: how often a request is sent again after a refused connection or an answer of 408, 429 or 5xx.
        timeout: seconds that an upstream may be silent.

    Raises:
        UserError: two entries have one name, or one does not say where its model is served.
        ValueError: a negative number of retries, or a timeout that is not positive.
    """

    def __init__(self, entries: Iterable[Upstream | Mapping[str, Any]], *, num_retries: int, timeout: float) -> None:
        if num_retries < 0:
            raise ValueError(f"num_retries={num_retries}: expected 0 or more")
        if timeout <= 0:
            raise ValueError(f"timeout={timeout}: expected seconds, more than 0")
        self._by_name = _by_name(entries)
        self._num_retries = num_retries
        self._timeout = timeout
        self._client: httpx.AsyncClient | None = None

    def replace(self, entries: Iterable[Upstream | Mapping[str, Any]]) -> None:
        """Have these from now on; callable from any thread.

        Raises:
            UserError: as the constructor; then nothing changes.
        """
        self._by_name = _by_name(entries)

    @property
    def names(self) -> list[str]:
        """What may be asked for, in the order given."""
        return list(self._by_name)

    def find(self, name: str) -> Upstream:
        """The upstream of this name.

        Raises:
            NotFoundError: there is none.
        """
        upstream = self._by_name.get(name)
        if upstream is None:
            raise NotFoundError(
                f"there is no model {name!r} here; ask for one of: {', '.join(self.names) or 'none'}",
                param="model",
                code="model_not_found",
            )
        return upstream

    async def send(self, upstream: Upstream, path: str, body: Mapping[str, Any]) -> httpx.Response:
        """The upstream's answer with its body still to be read; close it with `aclose`.

        Raises:
            UnavailableError: it could not be reached, however often it was tried.
        """
        headers = {} if upstream.api_key is None else {"authorization": f"Bearer {upstream.api_key}"}
        attempt = 0
        while True:
            last = attempt == self._num_retries
            request = self._pool().build_request("POST", f"{upstream.base_url}{path}", json=dict(body), headers=headers)
            try:
                answer = await self._pool().send(request, stream=True)
            except httpx.TransportError as error:
                if last:
                    raise UnavailableError(
                        f"{upstream.base_url} does not answer for model {upstream.name!r}: {error!r}",
                        code="upstream_unavailable",
                    ) from error
                retry_after = None
            else:
                if last or answer.status_code not in RETRIED_STATUSES:
                    return answer
                await answer.aclose()
                retry_after = answer.headers.get("retry-after")
            await asyncio.sleep(_pause(attempt, retry_after))
            attempt += 1

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def _pool(self) -> httpx.AsyncClient:
        if self._client is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            self._client = httpx.AsyncClient(timeout=httpx.Timeout(self._timeout, pool=None), limits=limits)
        return self._client


async def events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects in an answer of server-sent events; what else is in there is left out."""
    async for line in answer.aiter_lines():
        if line.startswith("data:") and (data := line[5:].strip()) != "[DONE]":
            with suppress(BadRequestError):
                yield json_object(data.encode())


def _by_name(entries: Iterable[Upstream | Mapping[str, Any]]) -> dict[str, Upstream]:
    upstreams: dict[str, Upstream] = {}
    for upstream in map(Upstream.of, entries):
        if upstream.name in upstreams:
            raise UserError(f"model_list names {upstream.name!r} twice")
        upstreams[upstream.name] = upstream
    return upstreams


def _pause(attempt: int, retry_after: str | None) -> float:
    """Seconds before the next try: what the server asked for, else twice as long each time, spread by chance."""
    if retry_after is not None and retry_after.isdecimal():
        return min(_LONGEST_PAUSE_SECONDS, float(retry_after))
    return min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0**attempt) * random.uniform(0.5, 1.0)
