"""Stores that hand every call on: each async method of the contract, under its own signature, becomes one call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from .base import STORE_METHODS, LightningStore


class ForwardingStore(LightningStore):
    """A store whose methods all go through `_forward`; `forward_methods` writes them."""

    async def _forward(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry out the method of the contract that has this name."""
        raise NotImplementedError


def forward_methods(store: type[ForwardingStore], names: Iterable[str] = STORE_METHODS) -> None:
    """Give the class each of the named methods that it does not define itself."""
    for name in names:
        if name not in vars(store):
            setattr(store, name, _forwarding(store, name))


def _forwarding(store: type[ForwardingStore], name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    contract = getattr(LightningStore, name)

    async def forward(self: ForwardingStore, *args: Any, **kwargs: Any) -> Any:
        return await self._forward(name, args, kwargs)

    forward.__name__ = name
    forward.__qualname__ = f"{store.__name__}.{name}"
    forward.__doc__ = contract.__doc__
    forward.__signature__ = inspect.signature(contract)  # type: ignore[attr-defined]  # functions take any attribute
    return forward
