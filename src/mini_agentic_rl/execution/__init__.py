"""Execution strategies: where the algorithm and its runners run."""

from typing import TYPE_CHECKING, Any

from .base import AlgorithmBundle, ExecutionStrategy, RunnerBundle
from .events import ExecutionEvent, MultiprocessingEvent, ThreadingEvent
from .shared_memory import SharedMemoryExecutionStrategy

if TYPE_CHECKING:
    from .client_server import ClientServerExecutionStrategy

__all__ = [
    "AlgorithmBundle",
    "ClientServerExecutionStrategy",
    "ExecutionEvent",
    "ExecutionStrategy",
    "MultiprocessingEvent",
    "RunnerBundle",
    "SharedMemoryExecutionStrategy",
    "ThreadingEvent",
]


def __getattr__(name: str) -> Any:
    if name != "ClientServerExecutionStrategy":  # loaded when asked for: it brings the store server along
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .client_server import ClientServerExecutionStrategy

    return ClientServerExecutionStrategy
