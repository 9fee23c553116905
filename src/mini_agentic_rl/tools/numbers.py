"""Numbers of the calculator: exact rationals where possible, floats for roots and logarithms, all bounded.

0.1 + 0.2 is 0.3 here, and no operation gives a number of more than `MAX_DIGITS` digits or takes long.
"""

from __future__ import annotations

import math
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


class CalculationError(ValueError):
    """The expression has no value, or a value out of bounds; the message is shown to the model."""


def bounded(value: Any) -> Number:
    """Return `value` as a number of at most `MAX_DIGITS` digits.

    Raises:
        CalculationError: it is too large, infinite, NaN or complex.
    """
    if isinstance(value, Fraction):
        if value.denominator == 1:
            return bounded(value.numerator)
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


def divide(left: Number, right: Number) -> Number:
    """Return `left / right`, exact if both are. Raises ZeroDivisionError."""
    if isinstance(left, float) or isinstance(right, float):
        return left / right
    return Fraction(left) / Fraction(right)


def power(base: Number, exponent: Number) -> Any:
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
    return bounded(round(value, digits))


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


def literal(text: str) -> Number:
    """Return the number of a literal such as 12, 1,234.5 or 2e-3.

    Raises:
        CalculationError: it has too many digits or too large an exponent.
    """
    digits = text.replace(",", "").lower()
    mantissa, _, exponent = digits.partition("e")
    if len(mantissa) > MAX_DIGITS or len(exponent) > 4 or abs(int(exponent or 0)) > MAX_DIGITS:
        raise CalculationError("number too large")
    return bounded(int(mantissa) if mantissa.isdigit() and not exponent else Fraction(digits))


def written(value: Number) -> str:
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
