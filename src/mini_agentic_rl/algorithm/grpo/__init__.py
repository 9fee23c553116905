"""Mini-GRPO: advantages within a group of rollouts. Names are loaded when they are first used."""

from ...compat import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
