"""Processes of the operating system: those started here, how they end, and the processors and memory that they share.

children.py    a process that ends with who started it
deadline.py    a process for work that must be bounded in time and memory
stopping.py    SIGTERM as Ctrl-C, and what ends cleanly before it
computer.py    how many processors this process may use, how many others leave free, and its memory
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
