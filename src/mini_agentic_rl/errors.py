"""The error that a person can mend: one line that says what to change, and which setting that is.

The code below the doors speaks of settings by the names of their fields. Each door spells them as its users do: the
command line writes `--max-batch-tokens` where Python says `max_batch_tokens`. The commands print a `UserError` as that
one line and exit with code 2; any other exception is a fault of ours and keeps its traceback.
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
    """Report that something which was asked for cannot be done.

    Args:
        text: what is wrong and what to change. Other settings stand in it in backticks, with a value where one is
            recommended: "full training needs `quantization=none`".
        setting: the field whose value is at fault; None where it is no setting.
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
        """Return the message with its settings as a door spells them.

        Args:
            spelling: returns what users of the door write for a field, or None for a word that is no setting there.
        """

        def respelled(named: re.Match[str]) -> str:
            name, value = spelling(named[1]), named[2]
            if name is None:
                return named[0]
            return name if value is None else f"{name} {value}"

        text = _NAMED.sub(respelled, self.text)
        return text if self.setting is None else f"{spelling(self.setting) or self.setting}: {text}"


def log_failure(logger: logging.Logger, error: BaseException, what: str) -> None:
    """Log at the error level that `what` failed: by its message where that says all (`UserError`), else by its
    traceback."""
    if isinstance(error, UserError):
        logger.error("%s: %s", what, error)
    else:
        logger.error("%s", what, exc_info=error)


def fit_for_future(error: BaseException, what: str) -> BaseException:
    """Return the error as a future can carry it: a StopIteration would raise there, and leave who waits waiting."""
    if not isinstance(error, StopIteration):
        return error
    fit = RuntimeError(f"{what} raised StopIteration")
    fit.__cause__ = error
    return fit


class RunFailedError(UserError):
    """Report that a run ends because nothing came of it: all of its rollouts failed.

    Args:
        what: which rollouts, as "all 8 rollouts".
        reasons: why, each with its number.
    """

    def __init__(self, what: str, reasons: Mapping[str, int]) -> None:
        reason, count = Counter(reasons).most_common(1)[0]
        others = sum(reasons.values()) - count
        times = "once" if count == 1 else f"{count} times"
        super().__init__(f"{what} failed: {reason}" + (f" ({times}; {others} for other reasons)" if others else ""))


class MissingPackageError(UserError, ImportError):
    """Report that something needs a package which is not installed.

    Args:
        what: what needs it, as "the PostgreSQL store".
        package: name of the package.
        extra: the extra of this package that has it; None where it is installed by itself.
        setting: the field whose value asks for it.
        hint: what else is to be known.
    """

    def __init__(
        self, what: str, package: str, *, extra: str | None = None, setting: str | None = None, hint: str = ""
    ) -> None:
        target = package if extra is None else f"'mini-agentic-rl[{extra}]'"
        super().__init__(f"{what} needs {package}, which is not installed: pip install {target}{hint}", setting=setting)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that was probably meant: one that begins or ends with `word`, else one spelled nearly
    alike; None where none is."""
    asked, words = word.lower(), list(known)
    if len(asked) > 2:
        for one in words:
            if one.startswith(asked) or one.endswith(f"_{asked}"):
                return one
    return next(iter(difflib.get_close_matches(asked, words, n=1, cutoff=0.65)), None)


def _restore(kind: type[UserError], args: tuple[Any, ...], state: dict[str, Any]) -> UserError:
    """Rebuild a pickled error without calling the `__init__` of its class, whose arguments may be others."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error
