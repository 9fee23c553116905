"""The parts that a trainer is made of: from what was asked for, from the environment, or the usual ones.

Without a `strategy`, the keyword `port` or one of the variables AGL_CURRENT_ROLE, AGL_MANAGED_STORE, AGL_SERVER_HOST
and AGL_SERVER_PORT asks for the client-server strategy; without any of them everything runs in this process.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, Final

from ..config import LightningEnvVar, resolve_bool_env_var, resolve_int_env_var, resolve_str_env_var
from ..errors import UserError
from ..execution import ExecutionStrategy, SharedMemoryExecutionStrategy
from ..files import make_private_folder
from ..runner import LitAgentRunner, Runner
from ..store import InMemoryLightningStore, LightningStore
from ..tracer import Tracer
from .components import Component, build
from .run_folder import RunFolder

logger = logging.getLogger(__name__)

STRATEGIES: Final = {
    "shm": "mini_agentic_rl.execution.SharedMemoryExecutionStrategy",
    "cs": "mini_agentic_rl.execution.client_server.ClientServerExecutionStrategy",
    "ray": "mini_agentic_rl.integrations.ray.RayExecutionStrategy",
}
STORES: Final = {
    "memory": "mini_agentic_rl.store.memory.InMemoryLightningStore",
    "sqlite": "mini_agentic_rl.store.sql.SqlLightningStore",
    "sql": "mini_agentic_rl.store.sql.SqlLightningStore",
    "mongo": "mini_agentic_rl.integrations.mongo.MongoLightningStore",
    "client": "mini_agentic_rl.store.LightningStoreClient",
}
DEFAULT_RUNNERS: Final = 8
DEFAULT_SERVER: Final = ("127.0.0.1", 4747)
"""Address of a store server that is told no other."""

_CLIENT_SERVER_VARIABLES: Final = (
    LightningEnvVar.AGL_CURRENT_ROLE,
    LightningEnvVar.AGL_MANAGED_STORE,
    LightningEnvVar.AGL_SERVER_HOST,
    LightningEnvVar.AGL_SERVER_PORT,
)


def make_strategy(
    spec: Component[ExecutionStrategy] | None, *, n_runners: int | None, port: int | None
) -> ExecutionStrategy:
    """Return the strategy; `n_runners` reaches one that is made here, `port` one that was made before as well.

    Raises:
        UserError: `spec` names no strategy.
    """
    if spec is None:
        spec = "cs" if port is not None or asks_for_processes() else "shm"
    settings: dict[str, Any] = {"n_runners": DEFAULT_RUNNERS if n_runners is None else n_runners}
    if port is not None:
        settings["server_port"] = port
    strategy: ExecutionStrategy = build("strategy", spec, ExecutionStrategy, names=STRATEGIES, settings=settings)
    if port is not None and isinstance(strategy, SharedMemoryExecutionStrategy):
        logger.warning("Trainer(port=%d) has no effect: the strategy runs everything in this process", port)
    if port is not None and strategy is spec and strategy.server_port is not None:
        strategy.server_port = port
    has = runners_of(strategy, n_runners)
    if n_runners is not None and n_runners != has:
        logger.warning("Trainer(n_runners=%d) has no effect: the strategy has %d", n_runners, has)
    return strategy


def asks_for_processes() -> bool:
    """Return True if the environment asks for the client-server strategy: each runner is a process of its own."""
    return any(variable.value in os.environ for variable in _CLIENT_SERVER_VARIABLES)


def is_store_of(spec: Component[LightningStore] | Path, folder: RunFolder) -> bool:
    """Return True if `spec` means the file in a run folder. It is opened by each run, not before the folder is
    ready."""
    if isinstance(spec, str) and spec != "sqlite":
        spec = Path(spec.removeprefix("sqlite:///"))
    is_file = isinstance(spec, Path) and spec.resolve() == folder.rollouts_path.resolve()
    return is_file or (isinstance(spec, str) and spec == "sqlite")


def make_store(spec: Component[LightningStore] | Path) -> LightningStore:
    """Return the store that was asked for: a spec, or the URL or file of one.

    Raises:
        UserError: `spec` names no store, or it cannot be opened.
    """
    if spec == "sqlite":
        raise UserError("Trainer(store='sqlite') needs output_dir, or the file itself: store='sqlite:///rollouts.db'")
    if isinstance(spec, Path) or (isinstance(spec, str) and _is_address(spec)):
        from ..store import open_store

        return open_store(spec, api_key=resolve_str_env_var(LightningEnvVar.AGL_API_KEY))
    store: LightningStore = build("store", spec, LightningStore, names=STORES)
    return store


def usual_store(folder: RunFolder | None) -> LightningStore | None:
    """The store where none was asked for: a server that is there already, else memory; None for the one in `folder`.

    AGL_MANAGED_STORE=0 says that there is a store server, at AGL_SERVER_HOST and AGL_SERVER_PORT.
    """
    if not resolve_bool_env_var(LightningEnvVar.AGL_MANAGED_STORE, fallback=True):
        from ..store import LightningStoreClient

        host = resolve_str_env_var(LightningEnvVar.AGL_SERVER_HOST, fallback=DEFAULT_SERVER[0])
        port = resolve_int_env_var(LightningEnvVar.AGL_SERVER_PORT, fallback=DEFAULT_SERVER[1])
        return LightningStoreClient(f"http://{host}:{port}", api_key=resolve_str_env_var(LightningEnvVar.AGL_API_KEY))
    return InMemoryLightningStore() if folder is None else None


def run_store(folder: RunFolder | None, strategy: ExecutionStrategy) -> LightningStore:
    """The store of one run in `folder`. A process of runners alone reaches the algorithm's store and opens none."""
    if folder is None or not runs_algorithm(strategy):
        return InMemoryLightningStore()
    from ..store import SqlLightningStore

    make_private_folder(folder.path)
    return SqlLightningStore(folder.rollouts_path)


def is_external(store: LightningStore | None) -> bool:
    """Return True if others may use the store at the same time."""
    return store is not None and not isinstance(store, InMemoryLightningStore)


def runs_algorithm(strategy: ExecutionStrategy) -> bool:
    """Return True if this start of the program runs the algorithm, and not runners alone."""
    if isinstance(strategy, SharedMemoryExecutionStrategy):
        return True
    from ..execution import ClientServerExecutionStrategy

    return not isinstance(strategy, ClientServerExecutionStrategy) or strategy.role != "runner"


def runs_algorithm_here(strategy: ExecutionStrategy) -> bool:
    """Return True if the algorithm runs in this process, and its summary is here at the end."""
    if isinstance(strategy, SharedMemoryExecutionStrategy):
        return True
    from ..execution import ClientServerExecutionStrategy

    if not isinstance(strategy, ClientServerExecutionStrategy) or strategy.role == "algorithm":
        return True
    return strategy.role == "both" and strategy.main_process == "algorithm"


def runners_of(strategy: ExecutionStrategy, asked_for: int | None) -> int:
    """Return the number of runners of the strategy; one of the user's own making has what was asked for."""
    if strategy.n_runners is not None:
        return strategy.n_runners
    return DEFAULT_RUNNERS if asked_for is None else asked_for


def make_runner(spec: Component[Runner[Any]] | None, *, tracer: Tracer | None, max_rollouts: int | None) -> Runner[Any]:
    """Return the runner; one object serves all runners of a process, each in a `run_context` of its own.

    Raises:
        UserError: `spec` names no runner.
    """
    settings: dict[str, Any] = {"tracer": tracer, "max_rollouts": max_rollouts}
    runner: Runner[Any] = build(
        "runner",
        LitAgentRunner if spec is None else spec,
        Runner,
        untyped="mini_agentic_rl.runner.LitAgentRunner",
        settings=settings,
    )
    return runner


def _is_address(text: str) -> bool:
    return "://" in text or os.sep in text or text.endswith(".db")
