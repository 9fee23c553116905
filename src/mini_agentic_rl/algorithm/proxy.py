"""The resources of an algorithm that trains no model of its own: what it was given, and the gateway if there is one."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..types import LLM, NamedResources
from .base import AlgorithmContext
from .resources import with_policy

logger = logging.getLogger(__name__)


@asynccontextmanager
async def resources_with_proxy(context: AlgorithmContext) -> AsyncIterator[NamedResources]:
    """The initial resources; with an `llm_proxy` of one model and no LLM among them, that model under the
    names that agents ask for as well.

    A proxy that does not run yet runs as long as the block, and records in the run's store if it has none.
    """
    proxy = context.llm_proxy
    if proxy is None:
        yield dict(context.initial_resources)
        return
    started = not proxy.is_running()
    if proxy.get_store() is None:
        proxy.set_store(context.store)
    if started:
        await proxy.start()
    try:
        resources = dict(context.initial_resources)
        if not any(isinstance(resource, LLM) for resource in resources.values()):
            try:
                resources = with_policy(resources, proxy.as_resource())
            except ValueError as error:  # it cannot tell which model is meant
                logger.info("llm_proxy adds no resource: %s", error)
        yield resources
    finally:
        if started:
            await proxy.stop()
