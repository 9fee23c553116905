"""Execution strategies: where the algorithm and its runners run."""

from .base import AlgorithmBundle, ExecutionStrategy, RunnerBundle
from .events import ExecutionEvent, ThreadingEvent
from .shared_memory import SharedMemoryExecutionStrategy

__all__ = [
    "AlgorithmBundle",
    "ExecutionEvent",
    "ExecutionStrategy",
    "RunnerBundle",
    "SharedMemoryExecutionStrategy",
    "ThreadingEvent",
]
