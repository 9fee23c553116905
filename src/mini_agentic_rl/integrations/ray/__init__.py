"""Runners as actors of a Ray cluster; algorithm and store server run in the starting process.

The store is the only channel between them. `strategy.py` sets up a run, `runners.py` scales the runners to the work,
and `cluster.py` has the actor that runs on a node. Only `cluster.py` imports Ray.
"""

from .strategy import RayExecutionStrategy

__all__ = ["RayExecutionStrategy"]
