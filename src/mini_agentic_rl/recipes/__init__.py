"""Recipes: one folder a story, with an agent, its tasks, its reward and a page that says what came of it.

`math`, `sql`, `tau2` and `gaia` are such stories. `load_recipe` gives jobs what they train, by name; `load_tasks` the
tasks. The agents are ordinary client code, trained through its `base_url`; `find_llm`, `rollout_client` and their
neighbours are how they reach the model. No torch here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .recipe import Demonstrations, Recipe

if TYPE_CHECKING:
    from .endpoint import find_llm as find_llm
    from .endpoint import outgrew_context as outgrew_context
    from .endpoint import rollout_client as rollout_client
    from .endpoint import rollout_url as rollout_url
    from .endpoint import shared_client as shared_client
    from .load import load_recipe as load_recipe
    from .load import load_tasks as load_tasks

_OF_ENDPOINT = ("find_llm", "outgrew_context", "rollout_client", "rollout_url", "shared_client")
"""Loaded when they are asked for: they need the OpenAI client, which takes half a second to import."""

_BY_NAME = ("load_recipe", "load_tasks")
"""Loaded when they are asked for: they know every recipe, and recipes import this face."""

__all__ = ["Demonstrations", "Recipe", *_BY_NAME, *_OF_ENDPOINT]


def __getattr__(name: str) -> Any:
    if name in _BY_NAME:
        return getattr(import_module(".load", __name__), name)
    if name in _OF_ENDPOINT:
        return getattr(import_module(".endpoint", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
