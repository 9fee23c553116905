"""A service that fails never stops a run: its errors become one line in the log, and the others go on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ..redaction import without_secrets
from .base import MetricsLogger

logger = logging.getLogger(__name__)

_FAILURES: Final = 5


class GuardedLogger(MetricsLogger):
    """Passes everything on to one logger, and keeps what that raises from the run.

    The first failure is told. After five in a row the logger is left alone, so that one whose service is away cannot
    hold up every step.

    Args:
        name: of the logger, for the log.
        inner: the logger.
    """

    def __init__(self, name: str, inner: MetricsLogger) -> None:
        self.name = name
        self.inner = inner
        self._in_a_row = 0
        self._told = False

    def phase(self, name: str, total: int | None = None) -> None:
        self._try(lambda: self.inner.phase(name, total))

    def advance(self, n: int = 1) -> None:
        self._try(lambda: self.inner.advance(n))

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        self._try(lambda: self.inner.log(metrics, step=step))

    def note(self, message: str) -> None:
        self._try(lambda: self.inner.note(message))

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self._try(lambda: self.inner.table(name, rows))

    def artifact(self, name: str, files: Sequence[Path]) -> None:
        self._try(lambda: self.inner.artifact(name, files))

    def close(self) -> None:
        self._try(self.inner.close, last=True)

    def _try(self, call: Callable[[], None], *, last: bool = False) -> None:
        if self._in_a_row >= _FAILURES and not last:
            return
        try:
            call()
        except Exception as error:  # of a foreign package, and of the network behind it
            self._in_a_row += 1
            reason = without_secrets(next(iter(str(error).strip().splitlines()), type(error).__name__))
            if not self._told:
                self._told = True
                logger.warning("the %s logger fails (%s); the run goes on without what it missed", self.name, reason)
            elif self._in_a_row == _FAILURES:
                logger.warning(
                    "the %s logger failed %d times in a row and is left alone (%s)", self.name, _FAILURES, reason
                )
        else:
            self._in_a_row = 0
