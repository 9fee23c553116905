"""The resources that an agent finds: those that the trainer was given, and the model that the algorithm serves."""

from __future__ import annotations

from ..types import LLM, NamedResources

LLM_RESOURCE = "llm"
"""Name of the resource under which the agent finds the model that is trained."""

MAIN_LLM_RESOURCE = "main_llm"
"""The same under the name that agents written for agent-lightning's VERL ask for."""


def with_policy(initial: NamedResources, policy: LLM) -> NamedResources:
    """`initial` with the served model as "llm" and "main_llm"; any other LLM in there stays as it is, a fixed model."""
    return {**initial, LLM_RESOURCE: policy, MAIN_LLM_RESOURCE: policy}
