"""Errors that a user can fix: one line that says what to change, and which setting.

Messages name settings by their fields, `max_batch_tokens`; the command line writes them as its options,
`--max-batch-tokens`. The commands print a `UserError` as one line and exit with code 2; any other exception is a bug
and keeps its traceback.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

_NAMED: Final = re.compile(r"`([a-z_][a-z0-9_]*)(?:=([^`]*))?`")


class UserError(Exception):
    """Report that a request cannot be fulfilled.

    Args:
        text: what is wrong and what to change. It names other settings in backticks, with a recommended value if there
            is one: "full training needs `quantization=none`".
        setting: field with the wrong value; None if it is no setting.
    """

    def __init__(self, text: str, *, setting: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.setting = setting

    def __str__(self) -> str:
        return self.text if self.setting is None else f"{self.setting}: {self.text}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__)

    def spelled(self, spelling: Callable[[str], str | None]) -> str:
        """Return the message with its settings in another spelling, such as command-line options.

        Args:
            spelling: returns the spelling of a field, or None for a word that is no setting.
        """
        text = spelled_settings(self.text, spelling)
        return text if self.setting is None else f"{spelling(self.setting) or self.setting}: {text}"


def spelled_settings(text: str, spelling: Callable[[str], str | None], *, quote: str = "") -> str:
    """Return a text with the settings in backticks, as `quantization=none`, in another spelling.

    Args:
        spelling: returns the spelling of a field, or None for a word that is no setting and stays as it is.
        quote: put around each setting in its new spelling.
    """

    def respelled(named: re.Match[str]) -> str:
        name, value = spelling(named[1]), named[2]
        if name is None:
            return named[0]
        return f"{quote}{name}{quote}" if value is None else f"{quote}{name} {value}{quote}"

    return _NAMED.sub(respelled, text)


def log_failure(logger: logging.Logger, error: BaseException, what: str) -> None:
    """Log at the error level that `what` failed: a `UserError` by its message, any other error by its traceback."""
    if isinstance(error, UserError):
        logger.error("%s: %s", what, error)
    else:
        logger.error("%s", what, exc_info=error)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def fit_for_future(error: BaseException, what: str) -> BaseException:
    """Return an error that a future can carry: `set_exception` refuses a StopIteration."""
    if not isinstance(error, StopIteration):
        return error
    replacement = RuntimeError(f"{what} raised StopIteration")
    replacement.__cause__ = error
    return replacement


class RunFailedError(UserError):
    """Report that a run ends because all of its rollouts failed.

    Args:
        what: which rollouts, as "all 8 rollouts".
        reasons: reason → number of rollouts.
    """

    def __init__(self, what: str, reasons: Mapping[str, int]) -> None:
        reason, count = Counter(reasons).most_common(1)[0]
        others = sum(reasons.values()) - count
        times = "once" if count == 1 else f"{count} times"
        super().__init__(f"{what} failed: {reason}" + (f" ({times}; {others} for other reasons)" if others else ""))


class MissingPackageError(UserError, ImportError):
    """Report that a required package is not installed.

    Args:
        what: what needs it, as "the PostgreSQL store".
        package: name of the package.
        extra: extra of this package that contains it; None if it is installed by itself.
        setting: field whose value needs it.
        hint: further advice.
    """

    def __init__(
        self, what: str, package: str, *, extra: str | None = None, setting: str | None = None, hint: str = ""
    ) -> None:
        target = package if extra is None else f"'mini-agentic-rl[{extra}]'"
        super().__init__(f"{what} needs {package}, which is not installed: pip install {target}{hint}", setting=setting)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that was probably meant: one that begins or ends with `word`, else one with a similar
    spelling; None if there is none."""
    lower, candidates = word.lower(), list(known)
    if len(lower) > 2:
        for candidate in candidates:
            if candidate.startswith(lower) or candidate.endswith(f"_{lower}"):
                return candidate
    return next(iter(difflib.get_close_matches(lower, candidates, n=1, cutoff=0.65)), None)


def _restore(kind: type[UserError], args: tuple[Any, ...], state: dict[str, Any]) -> UserError:
    """Rebuild a pickled error without calling the `__init__` of its class, whose arguments may differ."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error
