"""Processes of the operating system: child processes, how they end, and the processors and memory that they share.

children.py    a process that ends with the process that started it
deadline.py    a process for work that must be bounded in time and memory
stopping.py    SIGTERM handled as Ctrl-C, and a clean end of what runs
computer.py    processors that this process may use and that others leave free; memory; Python's garbage collector
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
