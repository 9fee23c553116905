"""The table of modules that have moved: the older names that users import, and the names now."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

PACKAGE: Final = "mini_agentic_rl"
OLDER_PACKAGE: Final = "mini_agent_lighting"

ALIASES: Final = ("agentlightning", "agent_framework_lab_lightning", "hello_agents.rl")
"""Packages of others, or a part of one, whose names lead here where somebody asks for that (`alias`)."""

MOVED: Final[dict[str, str]] = {
    # the names of agent-lightning 0.3
    "algorithm.fast": "algorithm.baseline",
    "emitter.exception": "emitter",
    "emitter.message": "emitter",
    "emitter.object": "emitter",
    "algorithm.utils": "algorithm.helpers",
    "algorithm.verl.interface": "algorithm.verl.verl",
    "cli.store": "cli.store_server",
    "env_var": "config",
    "instrumentation": "compat.instrumentation",
    "instrumentation.agentops": "compat.instrumentation",
    "instrumentation.agentops_langchain": "compat.instrumentation",
    "instrumentation.litellm": "compat.instrumentation",
    "instrumentation.vllm": "compat.instrumentation",
    "litagent.litagent": "litagent.agent",
    "llm_proxy": "gateway.proxy",
    "reward": "emitter.reward",
    "runner.agent": "runner.agent_runner",
    "store.client_server": "store",
    "store.utils": "store.lifecycle",
    "trainer.init_utils": "trainer.components",
    "types.tracer": "types.spans",
    "compat.system_snapshot": "runner.system_snapshot",
    "compat.otel": "emitter.attributes",
    "utils.otel": "emitter.attributes",
    "utils.system_snapshot": "runner.system_snapshot",
    # the names of the package before this one
    "algorithm.mini_grpo": "algorithm.grpo.mini_grpo",
    "algorithm.warm_start": "algorithm.loop.warm_start",
    "algorithm.trl_grpo": "algorithm.grpo.trl_backend",
    "mini_llm_server": "gateway.http.server",
    "utils": "compat",
    "utils.mini_llm_server": "cli.mini_llm_server",
    # the names of HelloAgents
    "core": "rl.simple_agent",
    # what stood elsewhere in earlier versions of this package
    "agents": "rl",
    "agents.client": "recipes.endpoint",
    "agents.gaia": "recipes.gaia",
    "agents.math_agent": "recipes.math",
    "agents.math_examples": "recipes.math",
    "agents.math_protocol": "recipes.math",
    "agents.simple_agent": "rl.simple_agent",
    "agents.sql": "recipes.sql",
    "agents.tau2": "recipes.tau2",
    "datasets.gaia": "recipes.gaia",
    "datasets.medical": "datasets.sql",
    "datasets.tau2": "recipes.tau2",
    "post_training.scoring.load": "post_training.scoring.reward_model",
    "rewards.gaia": "recipes.gaia",
    "sql_conversation": "datasets.sql",
    "tools.calculator": "calculator.expression",
    "tools.numbers": "calculator.numbers",
}
"""Older name → name now, both below the package. What is below an older name moves along with it."""

CALLED: Final = frozenset({"reward"})
"""Older names of modules that are names of functions at the top of the package as well: such a module can be called as
the function of its own last name, so that `mini_agentic_rl.reward` decorates whichever of the two it is."""


ELSEWHERE: Final[dict[str, tuple[str, str]]] = {
    "algorithm.apo.apo.batch_iter_over_dataset": ("algorithm.helpers", "batch_iter_over_dataset"),
    "tools.RLTrainingTool": ("rl_training_tool", "RLTrainingTool"),
}
"""Names of rooms that stand in a room above them: (module, name)."""


def find_elsewhere(module: str, name: str) -> Any:
    """Return what users look for under `name` in `module`, as the `__getattr__` of that module.

    Raises:
        AttributeError: nothing of that name was ever there.
    """
    found = ELSEWHERE.get(f"{module.removeprefix(PACKAGE + '.')}.{name}")
    if found is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return getattr(import_module(f"{PACKAGE}.{found[0]}"), found[1])


def current(name: str) -> str:
    """Return the name now of a module below the package; one that has not moved keeps its own."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        moved = MOVED.get(".".join(parts[:count]))
        if moved is not None:
            return ".".join((moved, *parts[count:]))
    return name
