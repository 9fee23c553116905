"""Environments: worlds with tasks, and one agent for all of them.

`Environment` is the protocol, `EpisodeEnvironment` the families of `datasets.episodes` in it, `EnvironmentAgent` what a
trainer runs; `episodes_recipe` is all of it for a job.
"""

from .agent import EnvironmentAgent, episodes_recipe
from .environment import Endpoint, Environment, EpisodeEnvironment, Outcome

__all__ = ["Endpoint", "Environment", "EnvironmentAgent", "EpisodeEnvironment", "Outcome", "episodes_recipe"]
