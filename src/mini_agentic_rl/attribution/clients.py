"""Wrappers of HTTP clients and threads, which carry the attempt of a call.

The header is added below every SDK: in the transports of httpx and httpx2 (the SDKs of OpenAI and Anthropic), in
aiohttp's requests, and in the standard library's connections (requests, urllib3, urllib). So existing clients are
covered, a retried request gets the header again, and a request that is redirected to another host does not. A library
that is imported later is wrapped then. Only gateways get the header.

Threads that an agent starts carry its context. A job of a thread pool runs in the context of its submitter.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final
from urllib.parse import urlsplit

import wrapt

from ..types import NamedResources, ProxyLLM
from .caller import HEADER, CallingAttempt, Origin, current, names_for, origin_of, origins_of, running


def _start(
    wrapped: Callable[[], None], thread: threading.Thread, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    if current.get() is not None:
        context = contextvars.copy_context()

        def run() -> None:
            del vars(thread)["run"]  # else the thread refers to itself
            context.run(thread.run)

        vars(thread)["run"] = run
    wrapped(*args, **kwargs)


def _submit(wrapped: Callable[..., Any], pool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if current.get() is None:
        return wrapped(*args, **kwargs)
    context = contextvars.copy_context()
    token = current.set(None)  # a thread that is started for the job outlives the job
    try:
        return wrapped(context.run, *args, **kwargs)
    finally:
        current.reset(token)


_lock = threading.Lock()
_watching: list[bool] = []


def watch_clients() -> None:
    """Wrap the HTTP clients and threads of this process; further calls change nothing."""
    with _lock:
        if _watching:
            return
        _watching.append(True)
    wrapt.wrap_function_wrapper(threading, "Thread.start", _start)
    for module in _WRAPPERS:
        wrapt.register_post_import_hook(_wrap, module)


def _wrap(module: ModuleType) -> None:
    for name, wrapper in _WRAPPERS[module.__name__].items():
        wrapt.wrap_function_wrapper(module, name, wrapper)


def _header(origin: Origin) -> str:
    names = names_for(origin)
    return "" if names is None else names.text()


@contextmanager
def _named(url: Any, headers: Any, scheme: str) -> Iterator[None]:
    """Add the names of the call to the headers while it is sent; entries of the client take precedence."""
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


def _httpx_sync(wrapped: Callable[..., Any], transport: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    request = args[0] if args else kwargs["request"]
    with _named(request.url, request.headers, request.url.scheme):
        return wrapped(*args, **kwargs)


async def _httpx_async(
    wrapped: Callable[..., Awaitable[Any]], transport: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    request = args[0] if args else kwargs["request"]
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
    target = urlsplit(url) if "://" in url else None  # a proxy gets the whole URL
    if target is not None:
        origin = origin_of(target.hostname or "", target.port, target.scheme)
    else:
        origin = origin_of(connection.host, connection.port, scheme)
    text = _header(origin)
    if text:
        connection.putheader(HEADER, text)
    return result


_HTTPX: Final = {
    "HTTPTransport.handle_request": _httpx_sync,
    "AsyncHTTPTransport.handle_async_request": _httpx_async,
}
_WRAPPERS: Final[dict[str, dict[str, Callable[..., Any]]]] = {
    "httpx": _HTTPX,
    "httpx2": _HTTPX,
    "aiohttp.client_reqrep": {"ClientRequest.send": _aiohttp_send},
    "http.client": {"HTTPConnection.putrequest": _putrequest},
    "concurrent.futures.thread": {"ThreadPoolExecutor.submit": _submit},
}
"""Wrappers by module and name of the wrapped function."""


@contextmanager
def calls_of(rollout_id: str, attempt_id: str, resources: NamedResources) -> Iterator[CallingAttempt]:
    """Attribute the LLM calls of a block, and of the threads that it starts, to an attempt.

    Args:
        rollout_id: id of the rollout.
        attempt_id: id of the attempt.
        resources: the resources of its agent; the endpoints among them get the `baggage` header.
    """
    watch_clients()
    llms = {name: resource for name, resource in resources.items() if isinstance(resource, ProxyLLM)}
    attempt = CallingAttempt(rollout_id, attempt_id, llms, origins_of([llm.endpoint for llm in llms.values()]))
    with running(attempt):
        yield attempt
