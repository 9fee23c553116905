"""Execution strategies: where the algorithm and its runners run.

An `ExecutionStrategy` runs an `AlgorithmBundle` and some `RunnerBundle`s against one store until an `ExecutionEvent` is
set: all in this process (`SharedMemoryExecutionStrategy`, "shm"), each in a process of its own, on one or several
computers (`ClientServerExecutionStrategy`, "cs"), or the runners as actors of a Ray cluster (`RayExecutionStrategy`,
"ray"). The last two import the store server and are therefore loaded lazily.
"""

from ..compat import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
