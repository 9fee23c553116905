"""The jobs behind the commands: settings in, a summary out. Here the trainer meets the agents that ship with it.

Names are loaded when they are first asked for: the settings load no torch, the jobs do.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
