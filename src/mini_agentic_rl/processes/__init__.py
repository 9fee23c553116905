"""Processes: starting and ending them, their bounds, and everything in which operating systems differ.

children.py    child processes that are killed with this process, and calls that are made at its death
family.py      a process with all of its descendants, ended as a whole
channel.py     a child process that exchanges Python objects with its parent
pickling.py    pickles of user code for another process
deadline.py    a helper process whose answers are bounded in time and memory
limits.py      bounds of memory and files, priority, peak memory
threads.py     blocking code in a daemon thread, awaited
computer.py    processors that are allowed and free; garbage collection
stopping.py    SIGTERM handled like Ctrl-C
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
