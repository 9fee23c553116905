"""The loop of a training, for every algorithm alike. Begin with `loop.py`; `reinforcement.py` is the base of the
algorithms, which loads the policy, serves it, and runs a `Loop`. Names are loaded when they are first used."""

from ...compat import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
