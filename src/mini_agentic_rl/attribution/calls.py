"""The block in which an agent runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..types import NamedResources, ProxyLLM
from .caller import CallingAttempt, origins_of, running
from .clients import watch_clients


@contextmanager
def calls_of(rollout_id: str, attempt_id: str, resources: NamedResources) -> Iterator[CallingAttempt]:
    """Attribute the calls that are made inside of the block, and in what it starts, to an attempt.

    Args:
        rollout_id: of the attempt.
        attempt_id: of the attempt.
        resources: those that its agent was given; the endpoints among them are told whose calls they get.
    """
    watch_clients()
    llms = {name: resource for name, resource in resources.items() if isinstance(resource, ProxyLLM)}
    attempt = CallingAttempt(rollout_id, attempt_id, llms, origins_of([llm.endpoint for llm in llms.values()]))
    with running(attempt):
        yield attempt
