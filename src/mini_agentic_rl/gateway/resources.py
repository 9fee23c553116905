"""The resources that an agent finds: those that the trainer was given, the model that is trained, and the models of an
`LLMProxy`, which runs as long as they are needed."""

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
"""Name of the resource under which the agent finds the model that is trained."""

MAIN_LLM_RESOURCE = "main_llm"
"""The same under the name that agents written for agent-lightning's VERL ask for."""


def with_policy(initial: NamedResources, policy: LLM, adapters: Sequence[str] = ()) -> NamedResources:
    """Return `initial` with the served model as "llm" and "main_llm"; any other LLM in there stays, as a fixed model.

    Each of `adapters`, which are served at the same endpoint, is there under its own name as well.
    """
    own = {name: policy.model_copy(update={"model": name}) for name in adapters}
    return {**initial, **own, LLM_RESOURCE: policy, MAIN_LLM_RESOURCE: policy}


@asynccontextmanager
async def resources_with_proxy(
    initial: NamedResources, proxy: LLMProxy | None, store: LightningStore
) -> AsyncIterator[NamedResources]:
    """Run `proxy` for the block, and yield the resources of an algorithm that trains no model of its own.

    They are `initial`; with a proxy of one model and no LLM among them, that model under the names that agents ask for
    as well.
    """
    async with _running(proxy, store):
        resources = dict(initial)
        if proxy is not None and not any(isinstance(resource, LLM) for resource in resources.values()):
            try:
                resources = with_policy(resources, proxy.as_resource())
            except ValueError as error:  # it cannot tell which model is meant
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
    """Run `proxy` for the block, and yield the resources beside a model of the algorithm's own.

    They are `initial`, and each model of the proxy under its name: fixed models, which are not trained. A proxy without
    models is for the algorithm's own: it is handed to `put_behind`, and has none again after the block.

    Raises:
        UserError: a model of the proxy has the name of one that is `served`, so that their calls could not be told
            apart.
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
    """Start a proxy that does not run yet, and stop it after the block. One without a store records in `store`."""
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
