"""Python's collector of garbage in a process that serves: while it looks through everything, nobody has a turn."""

from __future__ import annotations

import gc


def pass_over_what_is_there() -> None:
    """Have the collector leave aside what has been loaded, which stays for as long as the process: a look through all
    classes and functions of large libraries would hold every request up, again and again."""
    gc.collect()
    gc.freeze()
