"""Log output of the package. Only the package's own logger is configured; the root logger is left alone."""

from __future__ import annotations

import logging
import math
import sys
import time
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler

PACKAGE_LOGGER = "mini_agentic_rl"
_PLAIN = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
_WIDTH_WITHOUT_TERMINAL = 200


def setup_logging(
    level: int | str = "INFO",
    *,
    console: bool | Console = True,
    color: bool = True,
    propagate: bool = False,
    capture_warnings: bool = False,
    submodule_levels: Mapping[str, int | str] | None = None,
    extra_handlers: Iterable[logging.Handler] = (),
    formatter: logging.Formatter | None = None,
    apply_to: Iterable[str] = (),
    files: str | Path | Mapping[str, str | Path] | None = None,
) -> None:
    """Send the package's log records to the terminal, to files, or to handlers of your own.

    Calling it again replaces what it set up before, so it never doubles a line.

    Args:
        level: Records below this level are dropped. A name in any case (`"debug"`) or a number.
        console: Whether to write to standard error; a `rich` console to write there instead, so that log lines
            appear above a live display of the same console.
        color: Rich output if True, plain lines if False.
        propagate: Whether the records also reach the root logger's handlers.
        capture_warnings: Whether `warnings.warn` goes through the logging system.
        submodule_levels: Logger name → level, for a part of the package that should say more or less.
        extra_handlers: Further handlers for the package's logger.
        formatter: Format of the plain console and of the files.
        apply_to: Other loggers that get the same handlers and level.
        files: A file that takes every record, or logger name → file. Folders are created.

    Raises:
        ValueError: `level` names no logging level.
        OSError: a log file cannot be opened.
    """
    plain = formatter or _PLAIN
    handlers: list[logging.Handler] = []
    if console:
        handlers.append(_console_handler(console, color, plain))
    if isinstance(files, (str, Path)):
        files = {PACKAGE_LOGGER: files}
    file_handlers = {name: _file_handler(path, plain) for name, path in (files or {}).items()}
    if PACKAGE_LOGGER in file_handlers:
        handlers.append(file_handlers.pop(PACKAGE_LOGGER))
    handlers.extend(extra_handlers)

    for name in (PACKAGE_LOGGER, *apply_to):
        logger = logging.getLogger(name)
        _replace_handlers(logger, handlers)
        logger.setLevel(_level(level))
        logger.propagate = propagate and name == PACKAGE_LOGGER
    for name, handler in file_handlers.items():
        _replace_handlers(logging.getLogger(name), [handler])
    for name, submodule_level in (submodule_levels or {}).items():
        logging.getLogger(name).setLevel(_level(submodule_level))
    logging.captureWarnings(capture_warnings)
    ignore_library_notices()


class Throttle:
    """Tells whether to log a text again: at most once in `seconds`, however many runners run into the same thing."""

    def __init__(self, seconds: float = 30.0) -> None:
        self._seconds = seconds
        self._told: dict[str, float] = {}

    def due(self, text: str) -> bool:
        """Return True if `text` is to be logged now; asking counts as logging it."""
        now = time.monotonic()
        if now - self._told.get(text, -math.inf) < self._seconds:
            return False
        self._told[text] = now
        return True


def _level(level: int | str) -> int | str:
    return level.upper() if isinstance(level, str) else level


def _console_handler(console: bool | Console, color: bool, plain: logging.Formatter) -> logging.Handler:
    if not color and not isinstance(console, Console):
        handler: logging.Handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(plain)
        return handler
    if not isinstance(console, Console):
        width = None if sys.stderr.isatty() else _WIDTH_WITHOUT_TERMINAL
        console = Console(stderr=True, width=width, no_color=not color)
    return RichHandler(console=console, show_path=False, markup=False, rich_tracebacks=False)


def _file_handler(path: str | Path, plain: logging.Formatter) -> logging.Handler:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(plain)
    return handler


def _replace_handlers(logger: logging.Logger, handlers: list[logging.Handler]) -> None:
    for old in list(logger.handlers):
        logger.removeHandler(old)
        if isinstance(old, logging.FileHandler) and old not in handlers:
            old.close()
    for handler in handlers:
        logger.addHandler(handler)


def ignore_library_notices() -> None:
    """Pass over what transformers and peft will rename: that is for the authors of these packages, not for users.

    Inside `warnings.catch_warnings()` for that long, else for good.
    """
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|peft)\.")
