"""Stores that forward every call: the base of all wrappers, and the wrapper that may be called from any thread."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

from .base import STORE_METHODS, LightningStore, LightningStoreCapabilities, LightningStoreError

T = TypeVar("T")

logger = logging.getLogger(__name__)

_STOP_SECONDS: Final = 10.0
_WAITING: Final = frozenset({"wait_for_rollouts", "wait_for_work"})
"""Methods that wait for an event which another call causes."""


class LoopThread:
    """Event loop in a daemon thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name=name, daemon=True)
        self._thread.start()

    async def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread and wait for it; cancelling the wait cancels it.

        Raises:
            LightningStoreError: the thread was stopped.
        """
        if asyncio.get_running_loop() is self._loop:
            return await coroutine
        if self.stopped:
            coroutine.close()
            raise LightningStoreError("the store is closed, or was opened before a fork: open it in this process")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    @property
    def stopped(self) -> bool:
        """True if `stop` was called, or the process was forked."""
        return self._loop.is_closed() or not self._thread.is_alive()

    def stop(self) -> None:
        """Cancel the running coroutines and end the thread. Call it from another thread."""
        if self.stopped:
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped; a call that exits, as by `sys.exit`, does not end it."""
    while True:
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            logger.error("a call of the store raised %r", error)
        else:
            return


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class ForwardingStore(LightningStore):
    """Store whose methods all call `_forward`; `forward_methods` defines them."""

    async def _forward(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the method of the contract that has this name."""
        raise NotImplementedError


def forward_methods(store: type[ForwardingStore], names: Iterable[str] = STORE_METHODS) -> None:
    """Define each of the named methods that the class does not define itself, with the signature of the contract."""
    for name in names:
        if name not in vars(store):
            setattr(store, name, _forwarding(store, name))


def _forwarding(store: type[ForwardingStore], name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def method(self: ForwardingStore, *args: Any, **kwargs: Any) -> Any:
        return await self._forward(name, args, kwargs)

    contract = getattr(LightningStore, name)
    method.__name__ = name
    method.__qualname__ = f"{store.__name__}.{name}"
    method.__doc__ = contract.__doc__
    method.__signature__ = inspect.signature(contract)  # type: ignore[attr-defined]  # functions take any attribute
    return method


class LightningStoreThreaded(ForwardingStore):
    """Store that can be called from every thread and event loop: each call runs in one event-loop thread.

    A store that is not `async_safe` gets one call at a time, except for the calls that wait for an event. A cancelled
    call may have been carried out.
    """

    def __init__(self, store: LightningStore) -> None:
        self.store = store
        self._thread = LoopThread(type(store).__name__)
        self._turn = None if store.capabilities["async_safe"] else asyncio.Lock()

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(
            thread_safe=True,
            async_safe=True,
            zero_copy=self.store.capabilities["zero_copy"],
            otlp_traces=self.store.capabilities["otlp_traces"],
        )

    def otlp_traces_endpoint(self) -> str:
        return self.store.otlp_traces_endpoint()

    async def close(self) -> None:
        if not self._thread.stopped:
            await self._thread.call(self.store.close())
            await asyncio.to_thread(self._thread.stop)

    def release(self) -> None:
        """End the thread and leave the store open. Call it outside of any event loop."""
        self._thread.stop()

    async def _forward(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = getattr(self.store, name)(*args, **kwargs)
        return await self._thread.call(call if self._turn is None or name in _WAITING else self._in_turn(call))

    async def _in_turn(self, call: Coroutine[Any, Any, T]) -> T:
        assert self._turn is not None  # the store is not async_safe
        async with self._turn:
            return await call


forward_methods(LightningStoreThreaded)
