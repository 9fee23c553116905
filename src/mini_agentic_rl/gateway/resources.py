"""The resources of agents: those of the trainer, the trained model, and the models of an `LLMProxy`, which runs while
they are needed."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ..errors import UserError
from ..store import LightningStore
from ..types import LLM, NamedResources

if TYPE_CHECKING:
    from .proxy import LLMProxy

logger = logging.getLogger(__name__)

LLM_RESOURCE = "llm"
"""Name of the resource of the trained model."""

MAIN_LLM_RESOURCE = "main_llm"
"""The name that agents for agent-lightning's VERL use."""


def with_policy(initial: NamedResources, policy: LLM, adapters: Sequence[str] = ()) -> NamedResources:
    """Return `initial` with the served model as "llm" and "main_llm", and `adapters` under their names.

    Any other LLM in `initial` stays, as a fixed model.
    """
    named = {name: policy.model_copy(update={"model": name}) for name in adapters}
    return {**initial, **named, LLM_RESOURCE: policy, MAIN_LLM_RESOURCE: policy}


@asynccontextmanager
async def resources_with_proxy(
    initial: NamedResources, proxy: LLMProxy | None, store: LightningStore
) -> AsyncIterator[NamedResources]:
    """Run `proxy` for the block, and yield the resources of an algorithm that trains no model.

    They are `initial`. If there is no LLM among them and the proxy has one model, they include it as "llm" and
    "main_llm".
    """
    async with _running(proxy, store):
        resources = dict(initial)
        if proxy is not None and not any(isinstance(resource, LLM) for resource in resources.values()):
            try:
                resources = with_policy(resources, proxy.as_resource())
            except ValueError as error:  # there is not exactly one model
                logger.info("llm_proxy adds no resource: %s", error)
        yield resources


@asynccontextmanager
async def resources_with_upstreams(
    initial: NamedResources,
    proxy: LLMProxy | None,
    store: LightningStore,
    served: Collection[str],
    put_behind: Callable[[LLMProxy], None],
) -> AsyncIterator[NamedResources]:
    """Run `proxy` for the block, and yield the resources beside a model that the algorithm trains.

    They are `initial` and the models of the proxy under their names, as fixed models. A proxy without models is for the
    algorithm's model: it is passed to `put_behind`, and is without models again after the block.

    Raises:
        UserError: a model of the proxy has the name of one that is `served`.
    """
    async with _running(proxy, store):
        if proxy is None:
            yield dict(initial)
        elif proxy.models:
            shared = sorted(set(proxy.models) & set(served))
            if shared:
                raise UserError(
                    f"{shared[0]!r} is served by the algorithm itself; choose another model_name", setting="llm_proxy"
                )
            yield {**initial, **{name: proxy.as_resource(model=name) for name in proxy.models}}
        else:
            put_behind(proxy)
            try:
                yield dict(initial)
            finally:
                proxy.update_model_list([])


@asynccontextmanager
async def _running(proxy: LLMProxy | None, store: LightningStore) -> AsyncIterator[None]:
    """Start a proxy unless it runs, and stop it after the block. A proxy without a store records in `store`."""
    if proxy is None:
        yield
        return
    started = not proxy.is_running()
    if proxy.get_store() is None:
        proxy.set_store(store)
    if started:
        await proxy.start()
    try:
        yield
    finally:
        if started:
            await proxy.stop()
