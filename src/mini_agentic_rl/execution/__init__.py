"""Execution strategies: where the algorithm and its runners run.

An `ExecutionStrategy` runs an `AlgorithmBundle` and some `RunnerBundle`s against one store until an `ExecutionEvent` is
set: in this process (`SharedMemoryExecutionStrategy`, "shm"), or each in a process of its own, on one computer or many
(`ClientServerExecutionStrategy`, "cs"; it brings the store's server along, so it is loaded when it is asked for).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .base import AlgorithmBundle, ExecutionStrategy, RunnerBundle
from .events import ExecutionEvent, MultiprocessingEvent, ThreadingEvent
from .shared_memory import SharedMemoryExecutionStrategy

if TYPE_CHECKING:
    from .client_server import ClientServerExecutionStrategy, Role

__all__ = [
    "AlgorithmBundle",
    "ClientServerExecutionStrategy",
    "ExecutionEvent",
    "ExecutionStrategy",
    "MultiprocessingEvent",
    "Role",
    "RunnerBundle",
    "SharedMemoryExecutionStrategy",
    "ThreadingEvent",
]


def __getattr__(name: str) -> Any:
    if name not in ("ClientServerExecutionStrategy", "Role"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import client_server

    return getattr(client_server, name)
