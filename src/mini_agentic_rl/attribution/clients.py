"""HTTP clients of this process tell gateways whose call it is; to everybody else they say what they always do.

The header is added where a request leaves, below every SDK: in the transports of httpx and httpx2 (OpenAI's and
Anthropic's SDKs), in aiohttp's requests, and in the standard library's connections (requests, urllib3, urllib). So it
does not matter when a client was made, a request that is tried again is named again, and one that is redirected to
another host is not named there. A library that is not imported yet is seen to once it is.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final
from urllib.parse import urlsplit

import wrapt

from .baggage import HEADER
from .caller import Origin, origin_of
from .names import names_for
from .threads import follow_pools, follow_threads

_lock = threading.Lock()
_watching: list[bool] = []


def watch_clients() -> None:
    """Have the HTTP clients of this process name calls from now on, and threads carry the context; once is enough."""
    with _lock:
        if _watching:
            return
        _watching.append(True)
    follow_threads()
    for module, hook in _HOOKS.items():
        wrapt.register_post_import_hook(hook, module)


def _header(origin: Origin) -> str:
    names = names_for(origin)
    return "" if names is None else names.text()


@contextmanager
def _named(url: Any, headers: Any, scheme: str) -> Iterator[None]:
    """Have the headers name the call as long as it is being sent; what the client itself says there wins."""
    text = _header(origin_of(url.host or "", url.port, scheme))
    before = headers.get(HEADER)
    if text:
        headers[HEADER] = text if before is None else f"{text},{before}"
    try:
        yield
    finally:
        if text and before is None:
            headers.pop(HEADER, None)
        elif text:
            headers[HEADER] = before


def _request(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return args[0] if args else kwargs["request"]


def _httpx_sync(wrapped: Callable[..., Any], transport: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    request = _request(args, kwargs)
    with _named(request.url, request.headers, request.url.scheme):
        return wrapped(*args, **kwargs)


async def _httpx_async(
    wrapped: Callable[..., Awaitable[Any]], transport: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    request = _request(args, kwargs)
    with _named(request.url, request.headers, request.url.scheme):
        return await wrapped(*args, **kwargs)


async def _aiohttp_send(
    wrapped: Callable[..., Awaitable[Any]], request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    with _named(request.url, request.headers, request.url.scheme):
        return await wrapped(*args, **kwargs)


def _putrequest(wrapped: Callable[..., Any], connection: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = wrapped(*args, **kwargs)
    url = str(args[1] if len(args) > 1 else kwargs["url"])
    scheme = "https" if connection.default_port == 443 else "http"
    target = urlsplit(url) if "://" in url else None  # a proxy is asked for the whole URL
    if target is not None:
        origin = origin_of(target.hostname or "", target.port, target.scheme)
    else:
        origin = origin_of(connection.host, connection.port, scheme)
    text = _header(origin)
    if text:
        connection.putheader(HEADER, text)
    return result


def _on_httpx(module: ModuleType) -> None:
    wrapt.wrap_function_wrapper(module, "HTTPTransport.handle_request", _httpx_sync)
    wrapt.wrap_function_wrapper(module, "AsyncHTTPTransport.handle_async_request", _httpx_async)


def _on_aiohttp(module: ModuleType) -> None:
    wrapt.wrap_function_wrapper(module, "ClientRequest.send", _aiohttp_send)


def _on_http_client(module: ModuleType) -> None:
    wrapt.wrap_function_wrapper(module, "HTTPConnection.putrequest", _putrequest)


_HOOKS: Final[dict[str, Callable[[ModuleType], None]]] = {
    "httpx": _on_httpx,
    "httpx2": _on_httpx,
    "aiohttp.client_reqrep": _on_aiohttp,
    "http.client": _on_http_client,
    "concurrent.futures.thread": follow_pools,
}
