"""Pickling for another process, with an error that names the object which stands in the way.

Functions and classes of the main module, of a notebook or inside of functions travel by value, all others by the name
of their module.
"""

from __future__ import annotations

import functools
import inspect
import io
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any, ClassVar

import cloudpickle

from ...errors import UserError

_DEPTH = 12


_reduce_code: Callable[[CodeType], Sequence[Any]] = cloudpickle.Pickler.dispatch_table[CodeType]


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickler like cloudpickle, which keeps the file of functions that travel by value too: without it, as cloudpickle
    does from 3.1.3 on, a traceback from the other process shows no line of the user's code."""

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
    """Pickle `value`, which the error calls `name`.

    Raises:
        UserError: some part of it cannot be pickled; the message names the part and gives the `advice`.
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
    """Return the innermost part that cannot be pickled, and the way to it."""
    for _ in range(_DEPTH):
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
