"""Runners: they claim rollouts from the store and run attempts of them with an agent."""

from .agent_runner import Isolation, LitAgentRunner
from .base import Runner, StopEvent
from .logging_hook import LoggingHook
from .reward_hook import RewardHook

__all__ = ["Isolation", "LitAgentRunner", "LoggingHook", "RewardHook", "Runner", "StopEvent"]
