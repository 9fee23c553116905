"""The error that a person can mend: one line that says what to change, and which setting that is.

The code below the doors speaks of settings by the names of their fields. Each door spells them as its users do: the
command line writes `--max-batch-tokens` where Python says `max_batch_tokens`. The commands print a `UserError` as that
one line and exit with code 2; any other exception is a fault of ours and keeps its traceback.
"""

from __future__ import annotations

import re
from collections.abc import Callable
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


def _restore(kind: type[UserError], args: tuple[Any, ...], state: dict[str, Any]) -> UserError:
    """Rebuild a pickled error without calling the `__init__` of its class, whose arguments may be others."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error
