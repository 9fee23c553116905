"""Processes: starting and ending them, their bounds, and everything in which operating systems differ.

children.py    child processes that are killed with this process, calls that are made at its death, families
remote.py      a function of this package in a new process, and pickles of user code for it
deadline.py    a helper process whose answers are bounded in time and memory
computer.py    bounds of memory and files, priority, peak memory; processors that are allowed and free
threads.py     blocking code in a daemon thread, awaited
stopping.py    SIGTERM handled like Ctrl-C
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
