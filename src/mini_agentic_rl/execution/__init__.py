"""Execution strategies: where the algorithm and its runners run.

An `ExecutionStrategy` runs an `AlgorithmBundle` and some `RunnerBundle`s against one store until an `ExecutionEvent` is
set: in this process (`SharedMemoryExecutionStrategy`, "shm"), or each in a process of its own, on one computer or many
(`ClientServerExecutionStrategy`, "cs"; it brings the store's server along, so it is loaded when it is asked for).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
