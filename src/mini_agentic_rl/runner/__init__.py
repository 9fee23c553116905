"""Runners: they claim rollouts from the store and run attempts of them with an agent.

`LitAgentRunner` is the runner, `RewardHook` and `LoggingHook` are hooks for it. A runner's worker has a name in the
store (`worker_name`), by which `give_back_of_worker` finds what a runner that died was running. `runner.processes`
holds the processes that this package starts.
"""

from .agent_runner import Isolation, LitAgentRunner
from .base import Runner, StopEvent
from .hooks import LoggingHook, RewardHook
from .workers import give_back_of_worker, set_worker_label, worker_name

__all__ = [
    "Isolation",
    "LitAgentRunner",
    "LoggingHook",
    "RewardHook",
    "Runner",
    "StopEvent",
    "give_back_of_worker",
    "set_worker_label",
    "worker_name",
]
