"""Units that an answer may be given in: which of them measure the same, and how many of one are another.

A word that is not in the table, such as "apples", says nothing: answers with it are compared by their numbers alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Unit:
    """A unit of measurement or a currency."""

    kind: str
    """Quantity that it measures; numbers of two kinds are never equal."""
    factor: Fraction
    """Number of the kind's own units that it is."""
    name: str
    """A word that stands for it behind a number."""


_TABLE: dict[str, tuple[tuple[str, str], ...]] = {
    "length": (
        ("1/1000", "mm millimeter millimeters millimetre millimetres 毫米"),
        ("1/100", "cm centimeter centimeters centimetre centimetres 厘米"),
        ("1", "m meter meters metre metres 米"),
        ("1000", "km kilometer kilometers kilometre kilometres 千米 公里"),
        ("0.0254", "inch inches"),
        ("0.3048", "ft foot feet"),
        ("0.9144", "yards yard yd"),
        ("1609.344", "miles mile mi"),
    ),
    "mass": (
        ("1/1000", "mg milligram milligrams 毫克"),
        ("1", "g gram grams 克"),
        ("1000", "kg kilogram kilograms 千克 公斤"),
    ),
    "volume": (
        ("1/1000", "ml milliliter milliliters millilitre millilitres 毫升"),
        ("1", "l liter liters litre litres 升"),
    ),
    "time": (
        ("1", "s sec secs second seconds 秒"),
        ("60", "min mins minute minutes 分钟"),
        ("3600", "h hr hrs hour hours 小时"),
        ("86400", "days day 天"),
        ("604800", "weeks week 周"),
    ),
    "months": (("1", "months month 个月"), ("12", "years year 年")),
    "angle": (("1", "degrees degree deg ° 度"),),
    "dollars": (("1", "dollars dollar usd $ 美元"), ("1/100", "cents cent")),
    "euros": (("1", "euros euro eur € 欧元"),),
    "pounds sterling": (("1", "gbp £ 英镑"),),
    "yen or yuan": (("1", "yen yuan jpy cny rmb ¥ 元 円 日元 人民币"),),
    "rupees": (("1", "rupees rupee inr ₹"),),
    "in the morning": (("1", "am"),),
    "in the afternoon": (("1", "pm"),),
    "speed": (("1", "m/s"), ("5/18", "km/h kmh kph"), ("0.44704", "mph")),
}
_UNITS = {
    name: Unit(kind, Fraction(factor), names.split()[0])
    for kind, rows in _TABLE.items()
    for factor, names in rows
    for name in names.split()
}
_POWERS = {"square": 2, "sq": 2, "平方": 2, "cubic": 3, "立方": 3, "²": 2, "³": 3, "^2": 2, "^3": 3}
_LONGEST = 100
"""Characters of the longest text that may be a unit."""
_POWER = re.compile(r"(?:(?P<word>(?:square|sq|cubic)(?=\.? )|平方|立方)\.? ?)?(?P<base>[^²³^]*)(?P<sign>[²³]|\^[23])?")


def unit_of(text: str) -> Unit | None:
    """Return the unit that stands before or behind a number, such as "$", "km/h" or "square meters"; None for any
    other text."""
    if len(text) > _LONGEST:
        return None
    words = re.sub(r"\s*/\s*", "/", " ".join(text.lower().split()))
    match = _POWER.fullmatch(words)
    if match is None:
        return None
    unit = _UNITS.get(match["base"].strip())
    power = _POWERS.get(match["word"] or match["sign"] or "", 1)
    if unit is None or power == 1:
        return unit
    return Unit(f"{unit.kind} to the power of {power}", unit.factor**power, f"{unit.name}^{power}")
