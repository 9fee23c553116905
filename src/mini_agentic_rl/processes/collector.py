"""Python's collector of garbage in a process that serves: while it looks through everything, nobody has a turn."""

from __future__ import annotations

import gc
import threading


def pass_over_what_is_there() -> None:
    """Have the collector leave aside what has been loaded, which stays for as long as the process: a look through all
    classes and functions of large libraries would hold every request up, again and again.

    It is looked through once more for that, by a thread of its own: a signal of the main thread that came meanwhile
    would be raised, and lost, in whatever is being finalized.
    """
    threading.Thread(target=_pass_over, name="collector", daemon=True).start()


def _pass_over() -> None:
    gc.collect()
    gc.freeze()
