"""The resources that an agent finds: those that the trainer was given, and the model that the algorithm serves."""

from __future__ import annotations

from collections.abc import Sequence

from ..types import LLM, NamedResources

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
