"""A calculator for models: one arithmetic expression in, one short line of text out.

`calculate` never raises and never runs long: the parser bounds the length and depth of the expression, and the size of
every intermediate number and exponent, and returns "error: …" without a result. Numbers are exact rationals where
possible, floats for roots and logarithms: 0.1 + 0.2 is 0.3 here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Final, TypeAlias

Number: TypeAlias = int | Fraction | float

MAX_DIGITS: Final = 100
"""Decimal digits of any intermediate number."""
DECIMALS: Final = 10
"""Decimal places of a result that is not an integer."""
MAX_ARGUMENTS: Final = 99
"""Arguments of a variadic function."""
CONSTANTS: Final[dict[str, Number]] = {"pi": math.pi, "e": math.e}

_MAX_BITS: Final = int(MAX_DIGITS * math.log2(10))
_MAX_INTEGER: Final = 10**MAX_DIGITS
MAX_LENGTH: Final = 400
"""Characters of an expression."""
MAX_DEPTH: Final = 40
"""Nested parentheses, function calls and chained powers."""

CALCULATOR_TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}


def calculate(expression: str) -> str:
    """Return the value of `expression` as text, or a line that starts with "error: ".

    Accepts + - * / // % ** ^ and parentheses, × ÷ · and Unicode minus signs, decimals, scientific notation, thousands
    commas (1,234), a dollar sign before a number, percent (15% is 0.15; 15% of 80 is 12; 17 % 5 is 2), the constants
    pi and e, and the functions of `FUNCTIONS`. Powers bind as in Python: -2**2 is -4 and 2**3**2 is 512. In calls of
    functions with several arguments a comma separates arguments.

    Integers are exact up to `MAX_DIGITS` digits; other results are rounded to `DECIMALS` decimal
    places, or to significant digits where they are below 0.0001 or come from a root, a logarithm or the like.
    """
    try:
        return _written(_Parser(_as_text(expression)).value())
    except CalculationError as error:
        return f"error: {error}"
    except ZeroDivisionError:
        return "error: division by zero"
    except OverflowError:
        return "error: number too large"
    except ValueError:
        return "error: no real result"
    except RecursionError:  # of `str` of a nested value, or because the caller is near the limit
        return "error: nested too deeply"


def _as_text(expression: object) -> str:
    """Return an expression as text; a model may pass a number."""
    try:
        return str(expression)
    except ValueError:  # Python refuses to convert integers of thousands of digits
        raise CalculationError("number too large") from None


_SPELLINGS: Final = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "^": "↑"})
_DIGITS: Final = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_PLAIN_NUMBER: Final = re.compile(_DIGITS, re.ASCII)
_GROUPED_NUMBER: Final = re.compile(rf"\d{{1,3}}(?:,\d{{3}})+(?!\d)(?:\.\d+)?|{_DIGITS}", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z]+(?:10|2)?", re.ASCII)
_OPERAND_NEXT: Final = re.compile(r"\s*[\d.(A-Za-z$]", re.ASCII)
_OF: Final = re.compile(r"\s*of\b", re.IGNORECASE)


class _Parser:
    """Recursive descent, one method per level of precedence, from the lowest (`_sum`) to the highest (`_atom`)."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise CalculationError(f"expression longer than {MAX_LENGTH} characters")
        self._text = text.translate(_SPELLINGS).replace("↑", "**").strip().removesuffix("=")
        self._at = 0
        self._depth = 0
        self._number = _GROUPED_NUMBER

    def value(self) -> Number:
        if not self._text.strip():
            raise CalculationError("empty expression")
        result = self._sum()
        if self._peek():
            raise self._unexpected()
        return result

    def _sum(self) -> Number:
        left = self._product()
        while True:
            if self._take("+"):
                left = _bounded(left + self._product())
            elif self._take("-"):
                left = _bounded(left - self._product())
            else:
                return left

    def _product(self) -> Number:
        left = self._signed()
        while True:
            if self._take("//"):
                left = _bounded(left // self._signed())
            elif self._take("/"):
                left = _bounded(_divide(left, self._signed()))
            elif self._take("*") or self._take_times():
                left = _bounded(left * self._signed())
            elif self._take("%"):
                left = _bounded(left % self._signed())
            else:
                return left

    def _signed(self) -> Number:
        negative = False
        while True:
            if self._take("-"):
                negative = not negative
            elif not self._take("+"):
                value = self._power()
                return -value if negative else value

    def _power(self) -> Number:
        base = self._percent()
        if not self._take("**"):
            return base
        self._deeper()
        exponent = self._signed()
        self._depth -= 1
        return _bounded(_power_of(base, exponent))

    def _percent(self) -> Number:
        """Read an atom and its percent sign, which is the modulo operator before another operand."""
        value = self._atom()
        while self._peek() == "%" and not _OPERAND_NEXT.match(self._text, self._at + 1):
            self._at += 1
            value = _bounded(_divide(value, 100))
        if self._peek() == "%" and _OF.match(self._text, self._at + 1):
            self._at += 1
            value = _bounded(_divide(value, 100))
        return value

    def _atom(self) -> Number:
        self._take("$")
        if self._take("("):
            return self._enclosed(_GROUPED_NUMBER, 1)[0]
        self._peek()
        if match := self._number.match(self._text, self._at):
            self._at = match.end()
            return _literal(match.group())
        if match := _NAME.match(self._text, self._at):
            name = match.group().lower()
            if name in CONSTANTS:
                self._at = match.end()
                return CONSTANTS[name]
            if name not in FUNCTIONS:
                raise CalculationError(f"unknown name {match.group()[:20]}")
            self._at = match.end()
            return self._call(name)
        raise self._unexpected()

    def _call(self, name: str) -> Number:
        function, fewest, most = FUNCTIONS[name]
        if not self._take("("):
            raise CalculationError(f"{name} needs parentheses")
        if self._peek() == ")":
            raise CalculationError(f"{name} needs an argument")
        arguments = self._enclosed(_PLAIN_NUMBER if most > 1 else _GROUPED_NUMBER, MAX_LENGTH)
        if not fewest <= len(arguments) <= most:
            count = str(most) if fewest == most else f"{fewest} to {most}"
            raise CalculationError(f"{name} takes {count} argument{'s' if most > 1 else ''}")
        return _bounded(function(*arguments))

    def _enclosed(self, number: re.Pattern[str], most: int) -> list[Number]:
        """Return one to `most` values, separated by commas, up to the closing parenthesis."""
        outer, self._number = self._number, number
        self._deeper()
        values = [self._sum()]
        while len(values) < most and self._take(","):
            values.append(self._sum())
        if not self._take(")"):
            raise self._unexpected() if self._peek() else CalculationError("missing )")
        self._depth -= 1
        self._number = outer
        return values

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise CalculationError("nested too deeply")

    def _peek(self) -> str:
        """Return the next character that is not a space, "" at the end."""
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1
        return self._text[self._at : self._at + 1]

    def _take(self, symbol: str) -> bool:
        self._peek()
        if not self._text.startswith(symbol, self._at):
            return False
        if symbol in "*/" and self._text.startswith(symbol * 2, self._at):
            return False
        self._at += len(symbol)
        return True

    def _take_times(self) -> bool:
        """Read the words x and of, as in 3 x 4 and 15% of 80."""
        match = _NAME.match(self._text, self._at)
        if match is None or match.group().lower() not in ("x", "of"):
            return False
        self._at = match.end()
        return True

    def _unexpected(self) -> CalculationError:
        character = self._peek()
        message = f"unexpected {character!r} at {self._at + 1}" if character else "incomplete expression"
        return CalculationError(message)


class CalculationError(ValueError):
    """The expression has no value, or a value out of bounds; the message is shown to the model."""


def _bounded(value: Any) -> Number:
    """Return `value` as a number of at most `MAX_DIGITS` digits.

    Raises:
        CalculationError: it is too large, infinite, NaN or complex.
    """
    if isinstance(value, Fraction):
        if value.denominator == 1:
            return _bounded(value.numerator)
        if max(abs(value.numerator), value.denominator) >= _MAX_INTEGER:
            return float(value)
        return value
    if isinstance(value, complex):
        raise CalculationError("no real result")
    if isinstance(value, int):
        if abs(value) >= _MAX_INTEGER:
            raise CalculationError("number too large")
        return value
    number = float(value)
    if not math.isfinite(number):
        raise CalculationError("number too large")
    return number


def _divide(left: Number, right: Number) -> Number:
    """Return `left / right`, exact if both are. Raises ZeroDivisionError."""
    if isinstance(left, float) or isinstance(right, float):
        return left / right
    return Fraction(left) / Fraction(right)


def _power_of(base: Number, exponent: Number) -> Any:
    """Return `base ** exponent`, exact if the base is and the exponent is an integer; it may be complex.

    Raises:
        CalculationError: the result would be far longer than `MAX_DIGITS`, and is not computed.
        ZeroDivisionError, OverflowError: as Python's operator.
    """
    if isinstance(base, float) or isinstance(exponent, float) or not isinstance(exponent, int):
        return float(base) ** float(exponent)
    top = Fraction(base)
    bits = max(abs(top.numerator), top.denominator).bit_length() - 1
    if bits * abs(exponent) > _MAX_BITS or (bits == 0 and abs(exponent) >= _MAX_INTEGER):
        raise CalculationError("number too large")
    return top**exponent


def _square_root(value: Number) -> Number:
    if value < 0:
        raise CalculationError("no real result")
    if not isinstance(value, float):
        exact = Fraction(value)
        top, bottom = math.isqrt(exact.numerator), math.isqrt(exact.denominator)
        if top * top == exact.numerator and bottom * bottom == exact.denominator:
            return Fraction(top, bottom)
    return math.sqrt(value)


def _round(value: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > MAX_DIGITS:
        raise CalculationError("round takes a whole number of digits")
    return _bounded(round(value, digits))


FUNCTIONS: Final[dict[str, tuple[Callable[..., Any], int, int]]] = {
    "sqrt": (_square_root, 1, 1),
    "abs": (abs, 1, 1),
    "round": (_round, 1, 2),
    "min": (lambda *values: min(values), 1, MAX_ARGUMENTS),
    "max": (lambda *values: max(values), 1, MAX_ARGUMENTS),
    "floor": (math.floor, 1, 1),
    "ceil": (math.ceil, 1, 1),
    "log": (math.log, 1, 2),
    "ln": (math.log, 1, 1),
    "log10": (math.log10, 1, 1),
    "log2": (math.log2, 1, 1),
    "exp": (math.exp, 1, 1),
    "sin": (math.sin, 1, 1),
    "cos": (math.cos, 1, 1),
    "tan": (math.tan, 1, 1),
}
"""Name → (function, fewest arguments, most arguments). `log` is natural by default; angles are in radians."""


def _literal(text: str) -> Number:
    """Return the number of a literal such as 12, 1,234.5 or 2e-3.

    Raises:
        CalculationError: it has too many digits or too large an exponent.
    """
    digits = text.replace(",", "").lower()
    mantissa, _, exponent = digits.partition("e")
    if len(mantissa) > MAX_DIGITS or len(exponent) > 4 or abs(int(exponent or 0)) > MAX_DIGITS:
        raise CalculationError("number too large")
    return _bounded(int(mantissa) if mantissa.isdigit() and not exponent else Fraction(digits))


def _written(value: Number) -> str:
    """Return a result as text: integers in full, fractions to `DECIMALS` places, floats to two more digits."""
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if value == int(value) and abs(value) < 1e15:
            return str(int(value))
        return f"{value:.{DECIMALS + 2}g}"
    if abs(value) < Fraction(1, 10_000):
        return f"{float(value):.{DECIMALS}g}"
    scaled = round(abs(value) * 10**DECIMALS)
    whole, part = divmod(scaled, 10**DECIMALS)
    text = f"{whole}.{part:0{DECIMALS}d}".rstrip("0").rstrip(".")
    return f"-{text}" if value < 0 else text
