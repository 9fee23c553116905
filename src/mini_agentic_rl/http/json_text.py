"""JSON of requests and responses, with bounds on depth and number of values.

One call of Python's parser blocks all other threads until it returns. So a large text is read in pieces: arrays and
objects that are longer than a piece are walked step by step, between which other threads run, and the parser reads the
shorter ones.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, NoReturn

from pydantic import BaseModel

from .errors import BadRequestError

MAX_DEPTH: Final = 100
"""Most levels of nesting; readers and writers of JSON recurse, and fail somewhere beyond 200."""

MAX_CONTAINERS: Final = 1_000_000
"""Most arrays and objects in one text; each takes a hundred bytes and more."""

MAX_ITEMS: Final = 8_000_000
"""Most items of all arrays and objects in one text."""

MAX_FIELDS: Final = 200_000
"""Most fields of one object, which is checked and written in one call that blocks other threads."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_SPACE = re.compile(r"[ \t\n\r]*")
_AFTER: Final = {"{": "},", "[": "],"}
"""End marks of an item that begins so and is followed by another item."""
_SCALAR = re.compile(r"-?[A-Za-z0-9.+-]+")
_AT_ONCE: Final = 64 * 1024
"""Characters of a text that the parser reads in one call."""
_PIECE: Final = 4 * 1024
"""Characters of a larger text that the parser reads in one call."""
_APART: Final = 512
"""Least characters between two tries to parse a piece, so that each character is parsed a few times at most."""
_LONGEST_NUMBER: Final = 4300
"""Digits of an integer, as Python bounds them."""


_ANY: Final = json.JSONDecoder()


def parse_json(text: str, *, keep_halves: bool = False, max_depth: int = MAX_DEPTH, finite: bool = False) -> Any:
    """Return the value of a JSON text.

    Args:
        text: The text.
        keep_halves: Keep half of a surrogate pair, which encoders refuse, instead of U+FFFD.
        max_depth: Most levels of nesting, at most 200.
        finite: Refuse NaN and infinities.

    Raises:
        ValueError: it is no JSON, nested too deeply, or has too many values.
        NotFiniteError: it has a NaN or an infinity, and `finite` is set.
    """
    # Brackets and commas in strings count too, so that the check is quick.
    if text.count("[") + text.count("{") > MAX_CONTAINERS:
        raise ValueError(f"it holds more than {MAX_CONTAINERS} arrays and objects")
    if text.count(",") > MAX_ITEMS:
        raise ValueError(f"it holds more than {MAX_ITEMS} items")
    if not keep_halves and _SURROGATE.search(text) is not None:
        text = _PAIRED.sub(_whole, text)
    decoder = FINITE if finite else _ANY
    if len(text) > _AT_ONCE:
        return _Walk(text, max_depth, decoder).whole()
    try:
        value = decoder.decode(text)
    except RecursionError:
        raise _too_deep(max_depth) from None
    _check_depth(value, text, max_depth, max_depth)
    return value


def json_object(content: bytes, *, finite: bool = False) -> dict[str, Any]:
    """Return the JSON object in a body of UTF-8.

    Args:
        content: The body.
        finite: Refuse NaN and infinities.

    Raises:
        BadRequestError: it is no JSON object, or has a refused number; `param` is the path to the first one.
    """
    try:
        body = parse_json(content.decode("utf-8-sig"), finite=finite)
    except NotFiniteError as error:
        place = ""
        with suppress(ValueError):  # the rest of the text may be no JSON
            place = place_of_infinite(parse_json(content.decode("utf-8-sig")))
        message = f"{error} is no finite number, and JSON has no others"
        raise BadRequestError(f"{place}: {message}" if place else message, param=place or None) from None
    except ValueError as error:
        raise BadRequestError(f"the body is not a valid request: it is no JSON ({error})") from None
    if not isinstance(body, dict):
        raise BadRequestError("the body is not a valid request: expected a JSON object")
    return body


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False, allow_nan=False)


def encode(value: Any) -> bytes:
    """Return compact JSON of a value of JSON's types, with null for infinities and NaN."""
    try:
        text = _ENCODER.encode(value)
    except ValueError:
        text = _ENCODER.encode(_without_infinities(value))
    return text.encode("utf-8", "replace")


def _without_infinities(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _without_infinities(item) for name, item in value.items()}
    return [_without_infinities(item) for item in value] if isinstance(value, list | tuple) else value


# Two backslashes match together, because no escape follows them.
_PAIRED = re.compile(r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


def _whole(escape: re.Match[str]) -> str:
    """Return an escape unchanged, or that of U+FFFD for half a surrogate pair."""
    return "\\ufffd" if len(escape.group()) == 6 else escape.group()


class _Walk:
    """Parser for a large text."""

    def __init__(self, text: str, max_depth: int, decoder: json.JSONDecoder) -> None:
        self._text = text
        self._max_depth = max_depth
        self._read: Callable[[str, int], tuple[Any, int]] = decoder.raw_decode
        self._next_try = 0
        """Position from which a piece may be tried again."""

    def whole(self) -> Any:
        """Return the value of the text."""
        start = self._after_space(0)
        value, end = self._value(start, 0)
        end = self._after_space(end)
        if end != len(self._text):
            raise json.JSONDecodeError("Extra data", self._text[end : end + 64], 0)
        return value

    def _value(self, start: int, depth: int) -> tuple[Any, int]:
        """Return the value that begins at `start`, within `depth` arrays and objects, and its end."""
        first = self._text[start : start + 1]
        if first == '"':
            return self._read(self._text, start)
        if not first or first not in "[{":
            scalar = _SCALAR.match(self._text, start, start + _LONGEST_NUMBER)
            try:
                value, length = self._read("" if scalar is None else scalar.group(), 0)
            except json.JSONDecodeError:
                raise self._expected("value", start) from None
            return value, start + length
        if depth >= self._max_depth:
            raise _too_deep(self._max_depth)
        result = self._tried(start, "", start + _PIECE, "", self._max_depth - depth)
        if result is None:  # it is longer than a piece, or no JSON
            return self._container(start, depth + 1)
        return result[0], start + result[1]

    def _tried(self, start: int, opening: str, cut: int, closing: str, levels: int) -> tuple[Any, int] | None:
        """Return the value at the begin of a piece of the text between two marks, and its length; None if there is no
        whole value, or the last such try is too near."""
        if start < self._next_try:
            return None
        piece = f"{opening}{self._text[start:cut]}{closing}"
        try:
            result = self._read(piece, 0)
        except RecursionError:
            raise _too_deep(self._max_depth) from None
        except ValueError:
            self._next_try = start + _APART
            return None
        _check_depth(result[0], piece, levels, self._max_depth)
        return result

    def _container(self, start: int, depth: int) -> tuple[Any, int]:
        """Return the array or object that begins at `start`, item by item, and its end."""
        opening = self._text[start]
        items: Any = [] if opening == "[" else {}
        closing = "]" if opening == "[" else "}"
        at = self._after_space(start + 1)
        if self._text[at : at + 1] == closing:
            return items, at + 1
        while True:
            several = self._several(opening, at, closing, depth)
            if several is not None:
                more, at = several
            elif opening == "[":
                value, at = self._value(at, depth)
                more = [value]
            else:
                if self._text[at : at + 1] != '"':
                    raise self._expected("property name enclosed in double quotes", at)
                name, at = self._read(self._text, at)
                at = self._after_space(at)
                if self._text[at : at + 1] != ":":
                    raise self._expected("':' delimiter", at)
                value, at = self._value(self._after_space(at + 1), depth)
                more = {name: value}
            if opening == "[":
                items += more
            else:
                items |= more
                if len(items) > MAX_FIELDS:
                    raise ValueError(f"an object in it holds more than {MAX_FIELDS} fields")
            at = self._after_space(at)
            mark = self._text[at : at + 1]
            if mark == closing:
                return items, at + 1
            if mark != ",":
                raise self._expected("',' delimiter", at)
            at = self._after_space(at + 1)

    def _several(self, opening: str, at: int, closing: str, depth: int) -> tuple[Any, int] | None:
        """Return the items from `at` on in a piece, as an array or object, and their end; None if the piece cannot be
        cut.

        The piece is cut at a comma. After a cut within a string or an item the parser refuses the piece.
        """
        end = _AFTER.get(self._text[at : at + 1], ",")
        cut = self._text.rfind(end, at, at + _PIECE) + len(end) - 1
        if cut <= at:
            return None
        result = self._tried(at, opening, cut, closing, self._max_depth - depth + 1)
        # The last bracket is that of the piece, or of the array or object itself, which ends before the cut.
        return (result[0], at + result[1] - 2) if result is not None and result[0] else None

    def _after_space(self, at: int) -> int:
        space = _SPACE.match(self._text, at)
        return at if space is None else space.end()

    def _expected(self, what: str, at: int) -> ValueError:
        return ValueError(f"expected {what}: char {at}")


def _too_deep(max_depth: int) -> ValueError:
    return ValueError(f"nested more than {max_depth} levels deep")


def _check_depth(value: Any, text: str, levels: int, max_depth: int) -> None:
    """Raise ValueError if a value that was read from `text` has more than `levels` levels."""
    if text.count("[") + text.count("{") <= MAX_DEPTH // 2:
        return
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(levels):
        children = (child for item in level for child in (item.values() if isinstance(item, dict) else item))
        level = [child for child in children if isinstance(child, dict | list)]
        if not level:
            return
    raise _too_deep(max_depth)


_LONGEST_PLACE: Final = 200
_LONGEST_NUMBER_SHOWN: Final = 40


class NotFiniteError(ValueError):
    """A number is NaN or infinite; the message is its spelling."""


def _refuse(word: str) -> NoReturn:
    raise NotFiniteError(_shortened(word, _LONGEST_NUMBER_SHOWN))


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


FINITE: Final = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
"""Reads JSON, and raises `NotFiniteError` for NaN and infinities."""


def place_of_infinite(value: Any, path: str = "") -> str:
    """Return the path to the first NaN or infinity in a value, for example `metadata.scores[0]`; empty without one.

    Args:
        value: a value of JSON's types, with at most `MAX_DEPTH` levels.
        path: the path to the value.
    """
    if isinstance(value, float):
        return "" if math.isfinite(value) else _shortened(path.removeprefix("."), _LONGEST_PLACE)
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        if isinstance(item, dict | list) or (isinstance(item, float) and not math.isfinite(item)):
            step = f"[{name}]" if isinstance(name, int) else f".{_shortened(name, _LONGEST_PLACE)}"
            if place := place_of_infinite(item, path + step):
                return place
    return ""


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


AT_ONCE: Final = 64 * 1024
"""Approximate characters of JSON that are written in one call."""
_STEP: Final = 1000
_NUMBERS: Final = frozenset({int, float, bool, type(None)})


def size_of(value: Any, most: int) -> int:
    """Return the approximate length of the JSON text of a value; counting stops soon after `most`."""
    size, rest = 0, [value]
    while rest and size <= most:
        item = rest.pop()
        if isinstance(item, BaseModel):
            item = vars(item)
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, dict):
            size += 16 * len(item) + sum(map(len, map(str, item)))
            if size <= most:
                rest += item.values()
        elif isinstance(item, list | tuple):
            size += 8 * len(item)
            if size <= most:
                rest += item
    return size


def encode_in_steps(value: Any) -> bytes:
    """Return the result of `encode`, written in steps."""
    return in_steps(value, encode)


def in_steps(value: Any, write: Callable[[Any], bytes], above: tuple[int, ...] = ()) -> bytes:
    """Return the JSON text of a value, written in steps, between which other threads run.

    Args:
        value: A value of JSON's types and pydantic models.
        write: Returns the compact JSON text of a part. Its errors are raised.
        above: The `id` of each value that contains this one.

    Raises:
        RecursionError: the value contains itself.
    """
    if isinstance(value, str) or size_of(value, AT_ONCE) <= AT_ONCE:
        return write(value)
    if id(value) in above:
        raise RecursionError("it contains itself")
    above = (*above, id(value))
    if isinstance(value, list | tuple):
        return b"[" + b",".join(_parts_of_list(value, write, above)) + b"]"
    if isinstance(value, dict | BaseModel):
        return b"{" + b",".join(_parts_of_object(dict(value), write, above)) + b"}"
    return write(value)


def _parts_of_list(value: Sequence[Any], write: Callable[[Any], bytes], above: tuple[int, ...]) -> Iterator[bytes]:
    for start in range(0, len(value), _STEP):
        part = list(value[start : start + _STEP])
        if _NUMBERS.issuperset(map(type, part)) or size_of(part, AT_ONCE) <= AT_ONCE:
            yield write(part)[1:-1]
        else:
            yield from (in_steps(item, write, above) for item in part)


def _parts_of_object(
    value: Mapping[Any, Any], write: Callable[[Any], bytes], above: tuple[int, ...]
) -> Iterator[bytes]:
    items = iter(value.items())
    while part := dict(islice(items, _STEP)):
        if size_of(part, AT_ONCE) > AT_ONCE:
            for name, item in part.items():
                yield write({name: None})[1:-5] + in_steps(item, write, above)
        else:
            yield write(part)[1:-1]
