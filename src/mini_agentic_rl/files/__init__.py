"""Files as they are written and read: whole or not at all, by one writer, by nobody else, and with damage told.

atomic.py   a file or folder that is there in full or not at all, whatever dies meanwhile; a full disk told
lock.py     one process that writes into a folder, and who it is
private.py  files and folders that only their owner reads
damaged.py  what cannot be read is told by the file's name
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
