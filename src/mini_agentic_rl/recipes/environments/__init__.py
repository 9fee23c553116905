"""Environments: worlds with tasks, and one agent for all of them.

`Environment` is the protocol, `EnvironmentAgent` what a trainer runs, and `load_environment` finds one by its name:
`EpisodeEnvironment` holds the families of `datasets.episodes`, and the modules `verifiers`, `openenv` and `gymnasium`
those of other packages, which are imported when one of theirs is asked for. `environment_recipe` and
`environment_tasks` are all of it for a job.
"""

from .agent import EnvironmentAgent
from .conversation import Endpoint, converse
from .environment import Environment, EpisodeEnvironment, Outcome
from .gymnasium import GymnasiumEnvironment
from .load import environment_recipe, environment_tasks, load_environment
from .own_thread import OwnThread

__all__ = [
    "Endpoint",
    "Environment",
    "EnvironmentAgent",
    "EpisodeEnvironment",
    "GymnasiumEnvironment",
    "Outcome",
    "OwnThread",
    "converse",
    "environment_recipe",
    "environment_tasks",
    "load_environment",
]
