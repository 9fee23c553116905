"""The resources that an agent finds: those that the trainer was given, the model that the algorithm serves, and the
models of the gateway over upstreams if there is one."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ..errors import UserError
from ..types import LLM, NamedResources
from .base import AlgorithmContext

logger = logging.getLogger(__name__)

LLM_RESOURCE = "llm"
"""Name of the resource under which the agent finds the model that is trained."""

MAIN_LLM_RESOURCE = "main_llm"
"""The same under the name that agents written for agent-lightning's VERL ask for."""


def with_policy(initial: NamedResources, policy: LLM, adapters: Sequence[str] = ()) -> NamedResources:
    """`initial` with the served model as "llm" and "main_llm"; any other LLM in there stays as it is, a fixed model.

    Each of `adapters`, which are served at the same endpoint, is there under its own name as well.
    """
    own = {name: policy.model_copy(update={"model": name}) for name in adapters}
    return {**initial, **own, LLM_RESOURCE: policy, MAIN_LLM_RESOURCE: policy}


@asynccontextmanager
async def resources_with_proxy(context: AlgorithmContext) -> AsyncIterator[NamedResources]:
    """The resources of an algorithm that trains no model of its own; the `llm_proxy` runs as long as the block.

    They are the initial ones; with an `llm_proxy` of one model and no LLM among them, that model under the names that
    agents ask for as well.
    """
    async with _running(context) as proxy:
        resources = dict(context.initial_resources)
        if proxy is not None and not any(isinstance(resource, LLM) for resource in resources.values()):
            try:
                resources = with_policy(resources, proxy.as_resource())
            except ValueError as error:  # it cannot tell which model is meant
                logger.info("llm_proxy adds no resource: %s", error)
        yield resources


@asynccontextmanager
async def resources_with_upstreams(
    context: AlgorithmContext, served: Collection[str], put_behind: Callable[[Any], None]
) -> AsyncIterator[NamedResources]:
    """The resources beside a model of the algorithm's own; the `llm_proxy` runs as long as the block.

    They are the initial ones, and each model of the `llm_proxy` under its name: fixed models, which are not trained. A
    proxy without models is for the algorithm's own: it is handed to `put_behind`, and has none again after the block.

    Raises:
        UserError: a model of the proxy has the name of one that is `served`, so that their calls could not be told
            apart.
    """
    async with _running(context) as proxy:
        models = [] if proxy is None else list(proxy.models)
        if proxy is not None and not models:
            put_behind(proxy)
            try:
                yield dict(context.initial_resources)
            finally:
                proxy.update_model_list([])
            return
        shared = sorted(set(models) & set(served))
        if shared:
            raise UserError(f"llm_proxy: {shared[0]!r} is served by the algorithm itself; choose another model_name")
        yield {**context.initial_resources, **{name: proxy.as_resource(model=name) for name in models}}


@asynccontextmanager
async def _running(context: AlgorithmContext) -> AsyncIterator[Any]:
    """The `llm_proxy`, or None. One that does not run yet runs as long as the block, and records in the run's store if
    it has none."""
    proxy = context.llm_proxy
    if proxy is None:
        yield None
        return
    started = not proxy.is_running()
    if proxy.get_store() is None:
        proxy.set_store(context.store)
    if started:
        await proxy.start()
    try:
        yield proxy
    finally:
        if started:
            await proxy.stop()
