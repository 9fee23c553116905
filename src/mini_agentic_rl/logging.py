"""Log output of the package. Only the package's own logger is configured, never the root logger."""

from __future__ import annotations

import logging
import math
import re
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler

from .files import make_private_file, make_private_folder
from .visible_text import VisibleConsole, VisibleFormatter

PACKAGE_LOGGER = "mini_agentic_rl"
_PLAIN = VisibleFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
_VARYING = re.compile(r"\b[\w-]*\d[\w-]*\b")
"""Words with digits: numbers, ids, memory addresses."""
_LINES = VisibleFormatter("%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S")
_TIME_ON_TERMINAL = "%H:%M:%S"


def setup_logging(
    level: int | str = "INFO",
    *,
    console: bool | Console = True,
    color: bool | Mapping[str, object] = True,
    propagate: bool = False,
    disable_existing_loggers: bool = False,
    capture_warnings: bool = False,
    submodule_levels: Mapping[str, int | str] | None = None,
    extra_handlers: Iterable[logging.Handler] | None = None,
    formatter: logging.Formatter | None = None,
    apply_to: Iterable[str] | None = None,
    files: str | Path | Mapping[str, str | Path] | None = None,
) -> None:
    """Send the package's log records to the terminal, to files, or to other handlers.

    Calling it again replaces the earlier handlers.

    Args:
        level: records below this level are dropped; a name in any case (`"debug"`) or a number.
        console: whether to write to standard error; or a `rich` console to write to, so that log lines appear above a
            live display of the same console.
        color: rich output if True or the settings of a `RichHandler`; plain lines if False.
        propagate: whether the records also reach the root logger's handlers.
        disable_existing_loggers: whether to silence the existing loggers of other packages.
        capture_warnings: whether `warnings.warn` goes through the logging system.
        submodule_levels: logger name → level, for parts of the package.
        extra_handlers: further handlers for the package's logger.
        formatter: format of the plain console and of the files. The console is plain unless standard error is a
            terminal.
        apply_to: other loggers that get the same handlers and level.
        files: a file for every record, or logger name → file. Missing files and folders are created for this user only,
            since failures quote conversations.

    Raises:
        ValueError: `level` is not a logging level.
        OSError: a log file cannot be opened.
    """
    plain = formatter or _PLAIN
    handlers: list[logging.Handler] = []
    if console:
        handlers.append(_console_handler(console, bool(color), formatter))
    if isinstance(files, (str, Path)):
        files = {PACKAGE_LOGGER: files}
    file_handlers = {name: _file_handler(path, plain) for name, path in (files or {}).items()}
    if PACKAGE_LOGGER in file_handlers:
        handlers.append(file_handlers.pop(PACKAGE_LOGGER))
    handlers.extend(extra_handlers or ())

    for name in (PACKAGE_LOGGER, *(apply_to or ())):
        logger = logging.getLogger(name)
        _replace_handlers(logger, handlers)
        logger.setLevel(_level(level))
        logger.propagate = propagate and name == PACKAGE_LOGGER
    for name, handler in file_handlers.items():
        _replace_handlers(logging.getLogger(name), [handler])
    for name, submodule_level in (submodule_levels or {}).items():
        logging.getLogger(name).setLevel(_level(submodule_level))
    if disable_existing_loggers:
        _silence_others({PACKAGE_LOGGER, *(apply_to or ()), *(submodule_levels or {}), *file_handlers})
    logging.captureWarnings(capture_warnings)
    ignore_library_notices()


setup = setup_logging


def setup_module_logging(
    level: int | str = "INFO",
    *,
    name: str = PACKAGE_LOGGER,
    console: bool | Console = True,
    color: bool | Mapping[str, object] = True,
    propagate: bool = False,
) -> logging.Logger:
    """Send the records of one logger to the terminal, and return it. Calling it again replaces the earlier handlers.

    Args:
        level: records below this level are dropped.
        name: name of the logger.
        console, color, propagate: as in `setup_logging`.

    Raises:
        ValueError: `level` is not a logging level.
    """
    logger = logging.getLogger(name)
    _replace_handlers(logger, [_console_handler(console, bool(color), _PLAIN)] if console else [])
    logger.setLevel(_level(level))
    logger.propagate = propagate
    return logger


setup_module = setup_module_logging


def configure_logger(level: int | str = logging.INFO, name: str = PACKAGE_LOGGER) -> logging.Logger:
    """Call `setup_module_logging`: its older name.

    Raises:
        ValueError: `level` is not a logging level.
    """
    return setup_module_logging(level, name=name)


class Throttle:
    """Limits each message to one log line in `seconds`, however many runners fail in the same way."""

    def __init__(self, seconds: float = 30.0) -> None:
        self._seconds = seconds
        self._logged: dict[str, float] = {}

    def due(self, text: str) -> bool:
        """Return True if `text` should be logged now; the call counts as logging it."""
        now = time.monotonic()
        if now - self._logged.get(text, -math.inf) < self._seconds:
            return False
        self._logged[text] = now
        return True


def _level(level: int | str) -> int | str:
    return level.upper() if isinstance(level, str) else level


class _PlainHandler(logging.Handler):
    """Writes each record to a console as one line, neither wrapped nor padded."""

    def __init__(self, console: Console, formatter: logging.Formatter) -> None:
        super().__init__()
        self._console = console
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._console.print(self.format(record), markup=False, highlight=False, soft_wrap=True)
        except Exception:  # as in every handler of `logging`: a line that cannot be written must not stop the program
            self.handleError(record)


def _console_handler(console: bool | Console, color: bool, formatter: logging.Formatter | None) -> logging.Handler:
    if not isinstance(console, Console):
        console = VisibleConsole(stderr=True, no_color=not color)
        color = color and console.is_terminal
    elif not console.is_terminal:
        color = False
    if not color:
        return _PlainHandler(console, formatter or _LINES)
    handler = RichHandler(
        console=console, show_path=False, markup=False, rich_tracebacks=False, log_time_format=_TIME_ON_TERMINAL
    )
    handler.setFormatter(VisibleFormatter("%(message)s"))
    return handler


def _silence_others(kept: set[str]) -> None:
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and not any(f"{name}.".startswith(f"{own}.") for own in kept):
            logger.disabled = True


def _file_handler(path: str | Path, plain: logging.Formatter) -> logging.Handler:
    make_private_folder(Path(path).parent)
    if not Path(path).exists():  # an existing file keeps its permissions
        make_private_file(path)
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


def log_visibly(logger: logging.Logger, text: str, *args: object) -> None:
    """Log at level INFO, and on standard error unless `setup_logging` or the root logger's handlers were set up. It is
    for objects whose purpose is their log lines."""
    is_set_up = logging.getLogger(PACKAGE_LOGGER).level != logging.NOTSET or logger.level != logging.NOTSET
    if is_set_up or (logger.isEnabledFor(logging.INFO) and logger.hasHandlers()):
        logger.info(text, *args)
        return
    record = logger.makeRecord(logger.name, logging.INFO, "", 0, text, args, None)
    if logger.hasHandlers():
        logger.handle(record)
    else:
        _console_handler(True, True, None).handle(record)


@contextmanager
def only_errors_of(*names: str) -> Iterator[None]:
    """Within the block, the named loggers of other libraries log errors only."""
    before = {name: logging.getLogger(name).level for name in names}
    try:
        for name in names:
            logging.getLogger(name).setLevel(logging.ERROR)
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def ignore_library_notices() -> None:
    """Ignore deprecation warnings of transformers and peft. Inside `warnings.catch_warnings()` until its end, else for
    good."""
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|peft)\.")


class CountedCauses:
    """Counts the causes of warnings, so that each is logged once. Texts that differ only in numbers or ids are the same
    cause."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """Number of times of each cause, under its first text."""
        self._texts: dict[str, str] = {}

    @staticmethod
    def kind(cause: str) -> str:
        """Return the common form of all texts of a cause."""
        return _VARYING.sub("#", cause)

    def add(self, cause: str, count: int = 1) -> bool:
        """Count a cause; return True the first time."""
        key = self.kind(cause)
        is_new = key not in self._texts
        self.counts[self._texts.setdefault(key, cause)] += count
        return is_new
