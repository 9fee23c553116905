"""Files that are written atomically, by one process at a time, and read with errors that name the file.

atomic.py   write a file or folder atomically; explain a full disk; private files; errors for damaged files
lock.py     one writing process per folder
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
