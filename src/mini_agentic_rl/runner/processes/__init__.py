"""Processes that this package starts: each is a family of its own, and no member outlives who started it."""

from .channel import Channel
from .child import Child, describe_exit
from .failure import Failure
from .pickling import dumps
from .tree import end_family

__all__ = ["Channel", "Child", "Failure", "describe_exit", "dumps", "end_family"]
