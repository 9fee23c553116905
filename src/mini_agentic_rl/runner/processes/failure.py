"""An exception of another process, in a form that needs none of that process's classes."""

from __future__ import annotations

import traceback
from dataclasses import dataclass


class RemoteTraceback(Exception):
    """The traceback of another process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True)
class Failure:
    """What an exception says of itself."""

    type_name: str
    message: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The failure that an exception is."""
        return cls(type(error).__name__, str(error), "".join(traceback.format_exception(error)))

    def as_exception(self) -> Exception:
        """An exception whose class has the name of the one that was raised, caused by the traceback that it had."""
        kind = type(self.type_name, (Exception,), {"__module__": __name__})
        error: Exception = kind(self.message)
        error.__cause__ = RemoteTraceback(self.traceback)
        return error
