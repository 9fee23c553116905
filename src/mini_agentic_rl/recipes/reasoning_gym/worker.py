"""The process that scores answers: it receives [source, answer] and returns [score, error message or None].

The behaviour of reasoning-gym's scorers with a hostile answer is unknown, so the process drops the rights that no
scorer needs: writing files, other processes, the network, foreign code.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from ...processes import NotReadyError, confine, serve_answers

MEMORY_MIB: Final = 1024
"""Memory limit of the process beyond its memory at the start, in MiB."""

_BATCH: Final = 50
_FORBIDDEN: Final = (
    *("os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.kill", "os.killpg"),
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown"),
    *("subprocess.", "socket.", "shutil.", "ctypes.", "webbrowser.", "pty.", "ftplib.", "smtplib.", "urllib."),
)
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def refuse_harm(event: str, arguments: tuple[Any, ...]) -> None:
    """Raise PermissionError for operations that no scorer needs. Installed as an audit hook, which cannot be removed.

    It stops accidents and plain calls. It is no sandbox against an answer that breaks out of the interpreter.
    """
    if event == "open":
        path, mode, flags = arguments
        if isinstance(path, int):
            return
        if (isinstance(mode, str) and set(mode) & set("wax+")) or (isinstance(flags, int) and flags & _WRITING):
            raise PermissionError("no file is written here")
    elif event.startswith(_FORBIDDEN):
        raise PermissionError(f"{event} is not done here")


@lru_cache(maxsize=64)
def _dataset(generator: str, settings: str, seed: int) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(generator, **{**json.loads(settings), "seed": seed, "size": _BATCH})


def answer(question: Any) -> tuple[float, str | None]:
    """Return the score of an answer, and an error message if its problem cannot be generated."""
    source, given = question
    try:
        dataset = _dataset(source["generator"], json.dumps(source["settings"]), source["seed"])
        entry = dataset[source["index"]]
    except Exception as error:  # any setting may be wrong
        return 0.0, f"the problem {source} cannot be made: {type(error).__name__}: {error}"
    try:
        score = float(dataset.score_answer(given, entry))
    except BaseException:  # scorers raise anything for an unreadable answer, SystemExit included
        return 0.0, None
    return (min(1.0, max(0.0, score)) if math.isfinite(score) else 0.0), None


def _say_nothing() -> None:
    """Redirect output to the null device: some problems print, and output files must not grow."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)


def prepare() -> Callable[[Any], tuple[float, str | None]]:
    """Load the package and drop all rights that scorers do not need."""
    try:
        import reasoning_gym  # noqa: F401  # loaded before the memory is bounded
    except ImportError as error:
        raise NotReadyError(f"reasoning-gym cannot be imported: {error}") from error
    _say_nothing()
    confine(MEMORY_MIB)
    sys.addaudithook(refuse_harm)
    return answer


if __name__ == "__main__":
    serve_answers(prepare)
