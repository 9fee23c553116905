"""Mini-PPO: a critic, and advantages over the tokens of a rollout. Names are loaded when they are first used."""

from ...compat import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
