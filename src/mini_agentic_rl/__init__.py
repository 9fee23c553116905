"""mini-agentic-rl: train the LLM agent you already have, on the computer you already have.

Names are loaded when they are first asked for, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .compat import install as _find_older_names

__version__ = "0.1.0"

_ROOMS: dict[str, tuple[str, ...]] = {
    "adapter": (
        "Adapter",
        "LlmProxyTraceToTriplet",
        "OtelTraceAdapter",
        "TraceAdapter",
        "TraceToMessages",
        "TraceToRecords",
        "TraceToTokenTree",
        "TraceToTripletBase",
        "TracerTraceToTriplet",
        "TrainedCalls",
    ),
    "algorithm": (
        "APO",
        "VERL",
        "Algorithm",
        "Baseline",
        "FastAlgorithm",
        "GRPOSettings",
        "MiniGRPO",
        "MiniPPO",
        "PPOSettings",
        "algo",
    ),
    "config": ("LightningEnvVar", "resolve_bool_env_var", "resolve_int_env_var", "resolve_str_env_var"),
    "emitter": (
        "emit_annotation",
        "emit_exception",
        "emit_message",
        "emit_object",
        "emit_reward",
        "find_final_reward",
        "find_reward_spans",
        "get_message_value",
        "get_object_value",
        "get_reward_value",
        "get_rewards_from_span",
        "is_reward_span",
        "operation",
        "reward",
    ),
    "execution": (
        "ClientServerExecutionStrategy",
        "ExecutionEvent",
        "ExecutionStrategy",
        "MultiprocessingEvent",
        "SharedMemoryExecutionStrategy",
        "ThreadingEvent",
    ),
    "gateway.http.server": ("MiniLLMServer",),
    "gateway.proxy": ("LLMProxy",),
    "litagent": ("LitAgent", "llm_rollout", "prompt_rollout", "rollout"),
    "logging": ("setup_logging",),
    "runner": ("LitAgentRunner", "LoggingHook", "RewardHook", "Runner"),
    "store": (
        "InMemoryLightningStore",
        "LightningStore",
        "LightningStoreCapabilities",
        "LightningStoreClient",
        "LightningStoreServer",
        "LightningStoreStatistics",
        "LightningStoreThreaded",
        "MongoLightningStore",
        "SqlLightningStore",
    ),
    "tokens": ("CompletionRecord", "TokenTree"),
    "tracer": (
        "DummyTracer",
        "OtelTracer",
        "Tracer",
        "clear_active_tracer",
        "get_active_tracer",
        "init",
        "set_active_tracer",
    ),
    "trainer": ("Trainer",),
    "types": (
        "LLM",
        "Attempt",
        "AttemptedRollout",
        "Dataset",
        "EnqueueRolloutRequest",
        "Hook",
        "NamedResources",
        "PaginatedResult",
        "PromptTemplate",
        "ProxyLLM",
        "Resource",
        "ResourcesUpdate",
        "Rollout",
        "RolloutConfig",
        "Span",
        "SpanCoreFields",
        "Task",
        "Triplet",
        "Worker",
    ),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = sorted(_HOME)

_find_older_names()

if TYPE_CHECKING:
    from .algorithm import MiniGRPO as MiniGRPO
    from .litagent import LitAgent as LitAgent
    from .trainer import Trainer as Trainer
    from .types import Hook as Hook


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals().setdefault(name, value)  # `reward` is the name of a module as well, which can be called like the function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
