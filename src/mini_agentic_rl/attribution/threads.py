"""Threads that an agent starts carry its context, so that their calls and spans belong to its attempt.

Outside of rollouts, hooks and algorithms nothing changes. The threads of a pool have no context of their own: each job
runs in that of whoever submitted it.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import wrapt

from .caller import current


def follow_threads() -> None:
    """Have threads carry the context of who starts them."""
    wrapt.wrap_function_wrapper(threading, "Thread.start", _start)


def follow_pools(module: ModuleType) -> None:
    """Have the jobs of thread pools run in the context of who submits them; `module` is that of the pools."""
    wrapt.wrap_function_wrapper(module, "ThreadPoolExecutor.submit", _submit)


def _start(
    wrapped: Callable[[], None], thread: threading.Thread, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    if current.get() is not None:
        context = contextvars.copy_context()

        def run() -> None:
            del vars(thread)["run"]  # the thread would hold itself for good
            context.run(thread.run)

        vars(thread)["run"] = run
    wrapped(*args, **kwargs)


def _submit(wrapped: Callable[..., Any], pool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if current.get() is None:
        return wrapped(*args, **kwargs)
    context = contextvars.copy_context()
    token = current.set(None)  # a thread that is started for the job outlives it
    try:
        return wrapped(context.run, *args, **kwargs)
    finally:
        current.reset(token)
