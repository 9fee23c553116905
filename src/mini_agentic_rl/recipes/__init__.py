"""Recipes: one folder a story, with an agent, its tasks, its reward and a page that says what came of it.

`math`, `sql`, `tau2` and `gaia` are such stories; `environments` is one agent for many families of tasks, and `harness`
runs any command as an agent. `load_recipe` gives jobs what they train, by name; `load_tasks` the tasks. The agents are
ordinary client code, trained through its `base_url`; `find_llm`, `rollout_client` and their neighbours are how they
reach the model. No torch here.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
