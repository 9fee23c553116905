"""Pickles of user code for another process, and errors that name the part which cannot be pickled.

cloudpickle sends functions and classes of a script by value.
"""

from __future__ import annotations

import functools
import inspect
import io
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any, ClassVar, Final

import cloudpickle

from ..errors import UserError

_MAX_DEPTH: Final = 12
"""Levels of nested parts that are searched for the one that cannot be pickled."""

_reduce_code: Callable[[CodeType], Sequence[Any]] = cloudpickle.Pickler.dispatch_table[CodeType]


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's pickler, but functions sent by value keep their file name.

    cloudpickle drops it from 3.1.3 on; a traceback of the other process would then show no line of the user's code.
    """

    dispatch_table: ClassVar[Mapping[type, Callable[[Any], Any]]] = ChainMap(
        {CodeType: lambda code: (_code_of_file, (code.co_filename, *_reduce_code(code)[:2]))},
        cloudpickle.Pickler.dispatch_table,
    )


def _code_of_file(filename: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    return make(*arguments).replace(co_filename=filename)


def to_bytes(value: Any) -> bytes:
    """Pickle `value`.

    Raises:
        Exception: of any kind, if it cannot be pickled.
    """
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def dumps(value: Any, name: str, advice: str) -> bytes:
    """Pickle `value`.

    Args:
        value: any object.
        name: what the error calls it.
        advice: last sentence of the error.

    Raises:
        UserError: some part of it cannot be pickled; the message names the part.
    """
    try:
        return to_bytes(value)
    except Exception as error:
        path, part = _culprit(value, name, {id(value)})
        raise UserError(
            f"{path} ({type(part).__module__}.{type(part).__qualname__}) cannot be sent to another process: {error}. "
            f"{advice}"
        ) from error


def _culprit(value: Any, path: str, seen: set[int]) -> tuple[str, Any]:
    """Return the path of the innermost part that cannot be pickled, and the part."""
    for _ in range(_MAX_DEPTH):
        for step, part in _parts(value):
            if id(part) not in seen and not _is_picklable(part):
                seen.add(id(part))
                value, path = part, path + step
                break
        else:
            break
    return path, value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    elif inspect.isfunction(value):
        names = inspect.getclosurevars(value)
        for word, variables in (("global", names.globals), ("outer variable", names.nonlocals)):
            yield from ((f" → {word} {name!r}", part) for name, part in variables.items())
        yield from ((" → a default", part) for part in value.__defaults__ or ())
    elif inspect.ismethod(value):
        yield " → its object", value.__self__
    elif isinstance(value, functools.partial):
        yield from ((" → an argument", part) for part in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, type):
        yield from ((f".{name}", part) for name, part in vars(value).items())
    else:
        state = getattr(value, "__dict__", {})
        yield from ((f".{name}", part) for name, part in state.items())
        yield f" → {type(value).__name__}", type(value)


def _is_picklable(value: Any) -> bool:
    try:
        to_bytes(value)
    except Exception:  # pickling runs the code of whatever is pickled, which may raise anything
        return False
    return True
