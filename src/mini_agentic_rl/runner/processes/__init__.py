"""Processes that this package starts: each is a family of its own, and no member outlives who started it.

A parent starts a `Child`, the process talks to it through its `Channel`, and an exception travels as a `RemoteFailure`.
`dumps` pickles what a process is given, with an error that names the part which cannot be sent.
"""

from .channel import Channel, RemoteFailure
from .child import Child, describe_exit
from .family import FAMILY_VARIABLE, begin_family, end_family, new_family
from .pickling import dumps

__all__ = [
    "FAMILY_VARIABLE",
    "Channel",
    "Child",
    "RemoteFailure",
    "begin_family",
    "describe_exit",
    "dumps",
    "end_family",
    "new_family",
]
