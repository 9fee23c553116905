"""The table of moved modules: older names that users import, and current names."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

PACKAGE: Final = "mini_agentic_rl"
OLDER_PACKAGE: Final = "mini_agent_lighting"

ALIASES: Final = ("agentlightning", "agent_framework_lab_lightning", "hello_agents.rl")
"""Other packages, or a part of one, whose names `alias` makes aliases of this package."""

MOVED: Final[dict[str, str]] = {
    # the names of agent-lightning 0.3
    "algorithm.apo": "integrations.prompt_search",
    "algorithm.decorator": "algorithm.base",
    "algorithm.fast": "algorithm.baseline",
    "algorithm.utils": "algorithm.base",
    "algorithm.verl": "integrations.verl",
    "algorithm.verl.interface": "integrations.verl.verl",
    "cli.store": "commands.store_server",
    "emitter.exception": "emitter",
    "emitter.message": "emitter",
    "emitter.object": "emitter",
    "emitter.annotation": "emitter.emit",
    "env_var": "config",
    "execution.events": "execution.base",
    "instrumentation": "compat.stand_ins",
    "instrumentation.agentops": "compat.stand_ins",
    "instrumentation.agentops_langchain": "compat.stand_ins",
    "instrumentation.litellm": "compat.stand_ins",
    "instrumentation.vllm": "compat.stand_ins",
    "litagent.decorator": "litagent.agent",
    "litagent.litagent": "litagent.agent",
    "llm_proxy": "gateway.proxy",
    "reward": "emitter.reward",
    "runner.agent": "runner.agent_runner",
    "runner.base": "runner.agent_runner",
    "store.client_server": "store",
    "store.mongo": "integrations.mongo",
    "store.utils": "store.lifecycle",
    "tracer.dummy": "tracer.base",
    "tracer.agentops": "integrations.tracers.agentops",
    "trainer.init_utils": "trainer.components",
    "types.tracer": "types.spans",
    "utils.id": "compat.stand_ins",
    "utils.otel": "emitter.attributes",
    "utils.server_launcher": "compat.stand_ins",
    # for `from agentlightning.utils import otel`, as `utils` is `compat`
    "compat.id": "compat.stand_ins",
    "compat.otel": "emitter.attributes",
    "compat.server_launcher": "compat.stand_ins",
    # those of agent-framework-lab-lightning
    "tracer.agent_framework": "integrations.tracers.agentops",
    # the names of the package before this one
    "algorithm.mini_grpo": "algorithm.grpo",
    "utils": "compat",
    "utils.mini_llm_server": "commands.mini_llm_server",
    # the names of HelloAgents
    "agents": "integrations.hello_agents",
    "agents.simple_agent": "integrations.hello_agents.simple_agent",
    "core": "integrations.hello_agents.simple_agent",
    "rl": "integrations.hello_agents",
    # names of version 0.1
    "algorithm.from_use": "apps.learning",
    "algorithm.prompt_search": "integrations.prompt_search",
    "cli.mini_llm_server": "commands.mini_llm_server",
    "cli.options": "commands.options",
    "cli.script": "integrations.hello_agents.script",
    "dashboard": "apps.dashboard",
    "execution.ray": "integrations.ray",
    "exporter": "integrations.otlp",
    "ray_cluster": "integrations.ray.cluster",
    "jobs": "commands",
    "post_training.scoring": "apps.reward_service",
    "calculator": "tools",
    "datasets.arithmetic": "recipes.math.arithmetic",
    "datasets.conversation": "recipes.math.demonstrations",
    "datasets.sql": "recipes.sql.data",
    "datasets.stories": "recipes.math.stories",
    "recipes.endpoint": "environments.endpoint",
    "recipes.environments": "environments",
    "recipes.trl": "integrations.trl",
    "rl_training_tool": "integrations.hello_agents.training_tool",
    "samplers.for_trl": "integrations.trl.sampler",
    "sessions": "apps.learning",
    "tinker_api": "integrations.tinker",
    "tools.sql": "recipes.sql.tool",
}
"""Older name → current name, both below the package. Modules below an older name move with it."""

CALLED: Final = frozenset({"reward"})
"""Older names of modules that are also names of functions of the package: such a module can be called like the
function, so that `mini_agentic_rl.reward` decorates whichever of the two it is."""


ELSEWHERE: Final[dict[str, tuple[str, str]]] = {
    "algorithm.APO": ("integrations.prompt_search.apo", "APO"),
    "algorithm.APOSettings": ("integrations.prompt_search.apo", "APOSettings"),
    "algorithm.VERL": ("integrations.verl", "VERL"),
    "datasets.ArithmeticDataset": ("recipes.math", "ArithmeticDataset"),
    "datasets.SYSTEM_PROMPT": ("recipes.math", "SYSTEM_PROMPT"),
    "datasets.TOOLS": ("recipes.math", "TOOLS"),
    "datasets.demonstration": ("recipes.math", "demonstration"),
    "datasets.opening": ("recipes.math", "opening"),
    "environments.GymnasiumEnvironment": ("integrations.environments", "GymnasiumEnvironment"),
    "execution.RayExecutionStrategy": ("integrations.ray", "RayExecutionStrategy"),
    "metrics.MlflowLogger": ("integrations.loggers", "MlflowLogger"),
    "metrics.SwanLabLogger": ("integrations.loggers", "SwanLabLogger"),
    "metrics.TrackioLogger": ("integrations.loggers", "TrackioLogger"),
    "recipes.Demonstrations": ("environments", "Demonstrations"),
    "recipes.Recipe": ("environments", "Recipe"),
    "recipes.find_llm": ("environments", "find_llm"),
    "recipes.load_recipe": ("environments", "load_recipe"),
    "recipes.load_tasks": ("environments", "load_tasks"),
    "recipes.rollout_client": ("environments", "rollout_client"),
    "recipes.rollout_url": ("environments", "rollout_url"),
    "recipes.shared_client": ("environments", "shared_client"),
    "recipes.harness.HarnessSettings": ("config", "HarnessSettings"),
    "samplers.TRLSampler": ("integrations.trl.sampler", "TRLSampler"),
    "store.MongoLightningStore": ("integrations.mongo", "MongoLightningStore"),
    "tracer.AgentFrameworkTracer": ("integrations.tracers.agentops", "AgentFrameworkTracer"),
    "tracer.AgentOpsTracer": ("integrations.tracers.agentops", "AgentOpsTracer"),
    "integrations.prompt_search.apo.batch_iter_over_dataset": ("algorithm.base", "batch_iter_over_dataset"),
    "tools.RLTrainingTool": ("integrations.hello_agents.training_tool", "RLTrainingTool"),
}
"""Public names whose objects are defined in another part of the package: (module, name)."""


def attach_names(name: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package: the names of its stub, and those of `ELSEWHERE`, each
    loaded when it is first used."""
    import lazy_loader  # type: ignore[import-untyped]  # here, since this module is imported with the package

    listed, listing, every = lazy_loader.attach_stub(name, file)

    def get(attribute: str) -> Any:
        try:
            return listed(attribute)
        except AttributeError:
            return find_elsewhere(name, attribute)

    return get, listing, every


def find_elsewhere(module: str, name: str) -> Any:
    """Return the object of a moved name, for the `__getattr__` of `module`.

    Raises:
        AttributeError: there is no such name.
    """
    moved = ELSEWHERE.get(f"{module.removeprefix(PACKAGE + '.')}.{name}")
    if moved is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return getattr(import_module(f"{PACKAGE}.{moved[0]}"), moved[1])


def current(name: str) -> str:
    """Return the current name of a module below the package."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        moved = MOVED.get(".".join(parts[:count]))
        if moved is not None:
            return ".".join((moved, *parts[count:]))
    return name
