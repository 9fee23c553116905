"""Values of answers: numbers, options, lists and texts, parsed without an algebra package.

`in_ascii_numbers` first converts digits, punctuation and numerals of other scripts. A word after a number that is no
known unit, such as "apples", is ignored.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final, TypeAlias

UNCASED: Final = (
    "\u0590-\u1cff\u2e80-\u2fdf\u3005-\u3007\u3021-\u9fff\ua000-\ua4cf\uac00-\ud7ff\uf900-\ufaff\ufb1d-\ufdff"
    "\ufe70-\ufefe\uff66-\uffdc\U0001b000-\U0001b2ff\U00020000-\U000323af"
)
"""Letters of scripts without case, from Hebrew to Chinese and Korean, for a character class. Words of these scripts may
be next to a number without a space, as in 共42元."""

_MARKS = str.maketrans(
    {
        **{chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},
        **dict.fromkeys("\u3000", " "),
        **dict.fromkeys("。｡।။።", ". "),
        **dict.fromkeys("、､،", ", "),
        **dict.fromkeys("「」『』“”„«»", '"'),
        **dict.fromkeys("\u200b\u200e\u200f\u2066\u2067\u2068\u2069\ufeff"),
        "؛": ";",
        "؟": "?",
        "٪": "%",
        "٫": ".",
        "٬": ",",
        "￥": "¥",
    }
)
_NUMERALS = str.maketrans("零壹贰貳叁參肆伍陆陸柒捌玖两兩拾佰仟萬億", "〇一二二三三四五六六七八九二二十百千万亿")
_ONES = "〇一二三四五六七八九"
_NUMERAL_UNITS = {"十": 10, "百": 100, "千": 1000, "万": 10**4, "亿": 10**8}
_SINGLE = "〇零一二三四五六七八九两兩壹贰貳叁參肆伍陆陸柒捌玖"
_ALL = f"{_SINGLE}十百千万亿拾佰仟萬億"
_RUN = re.compile(rf"(?<![\d{_ALL}])([{_ALL}]{{1,20}})(?![{_ALL}])(?:[点點]([{_SINGLE}]{{1,20}})(?![{_ALL}]))?")
_BELOW = r"(?:[一-九]千〇?)?(?:[一-九]百〇?)?(?:[一-九]?十)?[一-九]?".replace("一-九", _ONES[1:])
_WELL_FORMED = re.compile(rf"(?=[{_ONES[1:]}十])(?:{_BELOW}亿〇?)?(?:{_BELOW}万〇?)?{_BELOW}")
_COUNTED = re.compile("[个個只元块塊米人次天年月岁歲本张張条條辆輛件名位分]?")
"""An optional measure word after a single numeral."""
_DIGIT = re.compile(r"[^\D0-9]")
_PERCENT = re.compile(r"百分之\s*(\d+(?:\.\d+)?)")
_FRACTION = re.compile(r"(?<!\d)(\d{1,15})\s*(?:分之|分の|분의)\s*(\d+)")
_MINUS = re.compile(r"(?:负|負|マイナス)\s*(?=\d)")


def in_ascii_numbers(text: str) -> str:
    """Return the text with numbers, full-width characters and punctuation in ASCII; words are not changed.

    ４２ and ٤٢ become 42, 百分之42 42%, 3分之2 2/3, and 负42 -42. Numerals are converted if they are not part of a
    word: 四十二 becomes 42, 三点五 3.5, 二〇二四 2024, and 四 becomes 4 if it is the whole text.
    """
    if text.isascii():
        return text
    text = _RUN.sub(_read_numeral, text)
    text = _DIGIT.sub(lambda digit: str(unicodedata.decimal(digit[0])), text.translate(_MARKS))
    return _MINUS.sub("-", _FRACTION.sub(r"\2/\1", _PERCENT.sub(r"\1%", text)))


def _read_numeral(match: re.Match[str]) -> str:
    """Return a Chinese or Japanese numeral in ASCII, or unchanged if it may be part of a word."""
    run, decimals = match[1].translate(_NUMERALS), (match[2] or "").translate(_NUMERALS)
    before, after = match.string[: match.start()].rstrip(), match.string[match.end() :].strip()
    alone = before in ("", "-", "负", "負", "マイナス") and _COUNTED.fullmatch(after) is not None
    is_part = before.endswith(("分之", "分の")) or after.startswith(("分之", "分の"))
    if set(run) <= set(_ONES):  # digit by digit
        if not (alone or is_part or decimals or (len(run) > 2 and "〇" in run)):
            return match[0]
        whole = _digits_of(run)
    elif (len(run) > 1 or alone or is_part) and _WELL_FORMED.fullmatch(run):
        whole = str(_value_of_numeral(run))
    else:
        return match[0]
    return f"{whole}.{_digits_of(decimals)}" if decimals else whole


def _digits_of(numerals: str) -> str:
    return "".join(str(_ONES.index(numeral)) for numeral in numerals)


def _value_of_numeral(run: str) -> int:
    total = section = digit = 0
    last = 1
    for numeral in run:
        if numeral in _ONES:
            digit = _ONES.index(numeral)
            last = last if digit else 1
        elif _NUMERAL_UNITS[numeral] < 10**4:
            section += (digit or 1) * _NUMERAL_UNITS[numeral]
            digit, last = 0, _NUMERAL_UNITS[numeral]
        else:
            total += (section + digit) * _NUMERAL_UNITS[numeral]
            section, digit, last = 0, 0, _NUMERAL_UNITS[numeral]
    return total + section + digit * (last // 10 if last > 10 else 1)  # 二百五 is 250


@dataclass(frozen=True)
class Unit:
    """A unit of measurement or a currency."""

    kind: str
    """Quantity that it measures; numbers of two kinds are never equal."""
    factor: Fraction
    """Its size in the base unit of the kind."""
    name: str
    """Its name after a number."""


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
    """Return the unit before or after a number, such as "$", "km/h" or "square meters"; None for any other text."""
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


@dataclass(frozen=True)
class NumberValue:
    """An exact number."""

    value: Fraction
    """Value before the percent sign: 15 of 15%."""
    percent: bool = False
    text: str = ""
    """The number as plain text."""
    unit: Unit | None = None
    """None without a known unit."""

    @property
    def full_text(self) -> str:
        """Return the number as text, with its unit."""
        return self.text if self.unit is None else f"{self.text} {self.unit.name}"


@dataclass(frozen=True)
class OptionValue:
    """One choice of several."""

    letter: str
    """In upper case."""


@dataclass(frozen=True)
class ListValue:
    """Several values in brackets, or separated by commas."""

    kind: str
    """The pair of brackets; "" without brackets, "sequence" if any pair is right or the numbers have names."""
    items: tuple[Value, ...]

    @property
    def ordered(self) -> bool:
        """Return True if the order of the items matters."""
        return self.kind not in ("{}", "")


@dataclass(frozen=True)
class TextValue:
    """A word or an expression."""

    text: str


Value: TypeAlias = NumberValue | OptionValue | ListValue | TextValue

MAX_NESTING = 8
"""Lists within lists."""
MAX_VALUE = 2000
"""Characters of an answer that is parsed; a longer one is compared as text."""

GROUPED = r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)"
"""Digits with thousands commas."""
_DIGITS = rf"(?:{GROUPED}|\d+)(?:\.\d*)?|\.\d+"
_NUMBER = re.compile(
    rf"(?P<sign>[-+])?\s*(?P<currency>[$€£¥₹])?\s*(?P<inner>-)?(?P<whole>{_DIGITS})(?:[eE](?P<exponent>[+-]?\d{{1,3}})(?!\w))?"
    rf"(?:\s*/\s*(?P<below>{_DIGITS}))?(?P<rest>.*)",
    re.ASCII | re.DOTALL,
)
_MIXED = re.compile(
    r"(?P<sign>[-+])?(?P<whole>\d{1,9})(?:\s+|\s*and\s+|又)(?P<top>\d{1,9})/(?P<bottom>\d{1,9})(?P<rest>.*)", re.ASCII
)
_UNIT = re.compile(
    r"(?:\s*(?:[$€£¥₹°]|degrees?|deg))?"
    r"(?:(?:km|cm|mm|m|ft|kg|mg|g|l|ml|h|hr|hrs|s|min|am|pm|mph|kmh|usd|eur|gbp|th|st|nd|rd)"
    r"(?:[²³]|\^[23])?(?!\w)(?:\s*/\s*[a-z]+)?|"
    r"\s+(?!(?:pi|sqrt|sin|cos|tan|log|ln|exp|and|or|mod)\b)(?:[A-Za-z]{2,}|[mghslaA](?![^\W²³]))[A-Za-z'²³^/ -]*\d?|"
    rf"\s*[{UNCASED}]{{1,20}}(?:\s*/\s*[{UNCASED}]{{1,20}}|[²³])?)?"
    r"(?:\([A-Za-z ]+\))?",
    re.IGNORECASE,
)
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "百": 10**2, "千": 10**3} | {
    **dict.fromkeys("万萬만", 10**4),
    **dict.fromkeys("亿億억", 10**8),
}
SCALE = r"(?:(?:thousand|million|billion|trillion)\b|[百千]?[万萬만亿億억]|百(?!分)|千(?![克米卡瓦升]))"
"""Words that multiply the number before them; 百万 is 1,000,000."""
_SCALE = re.compile(rf"\s*({SCALE})", re.IGNORECASE)
_HEDGE = re.compile(
    r"(?:about|approximately|approx\.?|around|roughly|nearly|almost|exactly|simply|just|equals?|therefore|so)\b\.?\s*"
    r"|[≈≃~=:]\s*",
    re.IGNORECASE,
)
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_SIMPLE_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{\s*(-?\d+)\s*\}\s*\{\s*(\d+)\s*\}|(\d)(\d)(?!\d))")
_SPACED_GROUPS = re.compile(r"(?<![\w.,/])(?<!\d\s)[1-9]\d{0,2}(?:[ \u00a0\u202f\u2009]\d{3})+(?![\w,/])(?!\s\d)")
_BRACKETS = {"(": ")]", "[": "])", "{": "}"}
_OPTION = re.compile(r"(?:option\s+|choice\s+)?(?:\(\s*)?([A-Za-z])(?:\s*\))?[.):]?", re.IGNORECASE)
_INFINITY = re.compile(r"(?P<sign>[-+]?)\s*(?:∞|\\infty|inf|infinity|oo)(?![A-Za-z])", re.IGNORECASE)
_EITHER_SIGN = re.compile(r"(?:±|\\pm(?![A-Za-z])|\+\s*/\s*-)\s*(?P<rest>.*)", re.DOTALL)
_VULGAR = re.compile("[¼-¾⅐-⅞]")


def clean(text: str) -> str:
    """Return `text` without math delimiters, emphasis, LaTeX spacing and text, hedges, "x =" and a final stop.

    A text of more than `MAX_VALUE` characters is only stripped: several patterns take quadratic time.
    """
    if len(text) > MAX_VALUE:
        return text.strip()
    text = in_ascii_numbers(text).strip().replace("−", "-").replace("–", "-").replace("{,}", ",").replace("\\$", "$")
    text = re.sub(r"\\(?:[,;!: ]|quad|qquad|left|right|displaystyle)(?![A-Za-z])|`", "", text)
    text = re.sub(r"(?<!\w)(\*\*|__)(?=\S)(.+?)(?<=\S)\1(?!\w)", r"\2", text)
    text = _TEXT_COMMAND.sub(r" \1", text).replace("\\%", "%")
    text = re.sub(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree", "°", text)
    text = re.sub(r"\\(?:approx|sim)\b", "≈", text)
    text = _SPACED_GROUPS.sub(lambda match: re.sub(r"\s", "", match.group()), text)
    text = _VULGAR.sub(lambda match: " " + unicodedata.normalize("NFKC", match.group()).replace("\u2044", "/"), text)
    text = _SIMPLE_FRACTION.sub(_plain_fraction, text).strip()
    for opening, closing in (("\\(", "\\)"), ("\\[", "\\]"), ("$$", "$$"), ("$", "$")):
        if text.startswith(opening) and text.endswith(closing) and len(text) > len(opening) + len(closing):
            text = text[len(opening) : -len(closing)].strip()
    text = text.strip(" \t\n*_\"'【】").rstrip(".,;!?").strip()
    if "=" in text and not re.search(r"[<>!]=|==|[,;]|\b(?:and|or)\b", text):
        text = text.rsplit("=", 1)[1].strip()
    text = re.sub(r"^[A-Za-z]\s*(?:\\in\b|∈)\s*", "", text)
    while match := _HEDGE.match(text):
        text = text[match.end() :]
    return text.strip()


def _plain_fraction(match: re.Match[str]) -> str:
    """Return a LaTeX fraction as 1/2; after a digit, as the fraction of a mixed number: 3 1/2."""
    mixed = match.string[max(0, match.start() - 2) : match.start()].rstrip()[-1:].isdigit()
    return f"{' ' if mixed else ''}{match[1] or match[3]}/{match[2] or match[4]}"


def parse_number(text: str) -> NumberValue | None:
    """Return a number with its currency, unit and percent sign; None for any other text."""
    if len(text) > 200:
        return None
    mixed = _MIXED.fullmatch(text)
    if mixed and int(mixed["bottom"]):
        value = int(mixed["whole"]) + Fraction(int(mixed["top"]), int(mixed["bottom"]))
        return _number(-value if mixed["sign"] == "-" else value, mixed["rest"])
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    value = Fraction(match["whole"].replace(",", "").rstrip("."))
    if match["exponent"]:
        value *= Fraction(10) ** int(match["exponent"])
    if match["below"]:
        below = Fraction(match["below"].replace(",", "").rstrip("."))
        if below == 0:
            return None
        value /= below
    if (match["sign"] == "-") != (match["inner"] == "-"):
        value = -value
    return _number(value, match["rest"], match["currency"] or "")


def _number(value: Fraction, rest: str, currency: str = "") -> NumberValue | None:
    """Return `value` with the scale, percent sign and unit of `rest`; None if `rest` is anything else."""
    if scale := _SCALE.match(rest):
        word = scale[1].lower()
        value *= _SCALES.get(word) or math.prod(_SCALES[character] for character in word)
        rest = rest[scale.end() :]
    percent = re.match(r"\s*(?:%|per ?cent\b)", rest, re.IGNORECASE)
    if percent:
        rest = rest[percent.end() :]
    rest = rest.rstrip(" .!")
    if not _UNIT.fullmatch(rest):
        return None
    unit = unit_of(rest) or unit_of(currency)
    return NumberValue(value, percent is not None, plain_number(value) + ("%" if percent else ""), unit)


def ungrouped(text: str) -> str:
    """Return a number, with its unit or currency, without thousands commas; any other text unchanged."""
    return _without_groups(text) if "," in text and parse_number(clean(text)) is not None else text


def _without_groups(text: str) -> str:
    return re.sub(GROUPED, lambda digits: digits[0].replace(",", ""), text)


def plain_number(value: Fraction) -> str:
    """Return a fraction as text: an integer, a decimal of at most twelve places, else top/bottom."""
    scaled = value * 10**12
    if scaled.denominator != 1:
        return str(value)
    digits = f"{abs(scaled.numerator):013d}"
    text = f"{digits[:-12]}.{digits[-12:]}".rstrip("0").rstrip(".")
    return f"-{text}" if value < 0 else text


def parse_value(text: str, nesting: int = 0) -> Value:
    """Return the value of a cleaned answer."""
    if len(text) > MAX_VALUE:
        return TextValue(text)
    number = parse_number(text)
    if number is not None:
        return number
    if option := _OPTION.fullmatch(text):
        return OptionValue(option[1].upper())
    if infinity := _INFINITY.fullmatch(text):
        return TextValue("-∞" if infinity["sign"] == "-" else "∞")
    either = _EITHER_SIGN.fullmatch(text)
    if either and (both := parse_number(either["rest"])):
        return ListValue("", (both, replace(both, value=-both.value)))
    text = text.replace("\\{", "{").replace("\\}", "}")
    closing = _BRACKETS.get(text[:1], "")
    if nesting < MAX_NESTING and closing and text[-1:] in closing and encloses(text):
        parts = _split(text[1:-1])
        if len(parts) > 1 or text[0] != "(":
            return ListValue(text[0] + text[-1], _values(parts, nesting))
        return parse_value(clean(parts[0]), nesting + 1) if parts else TextValue(text)
    parts = _split(re.sub(r",?\s+(?:and|or)\s+", ", ", text))
    if nesting < MAX_NESTING and len(parts) > 1 and all(parse_number(clean(part)) for part in parts):
        names = [part.partition("=")[0].strip() if "=" in part else "" for part in parts]
        if "" not in names and len(set(names)) == len(parts):  # x = 1, y = 2: each number is that of its name
            return ListValue("sequence", _values([part for _, part in sorted(zip(names, parts, strict=True))], nesting))
        return ListValue("", _values(parts, nesting))
    return TextValue(text)


def value_of(value: Any, nesting: int = 0) -> Value:
    """Return the value of a Python object: a number, text, or a container of such.

    Raises:
        ValueError: it is None or empty text outside of a container, or nan.
    """
    if isinstance(value, bool):
        return TextValue(str(value))
    if isinstance(value, int):
        return NumberValue(Fraction(value), text=str(value))
    if isinstance(value, float) and math.isfinite(value):
        return NumberValue(Fraction(str(value)), text=str(value))
    if isinstance(value, float) and math.isnan(value):
        raise ValueError("the right answer is not a number: nan equals nothing")
    if nesting == 0 and (value is None or not str(value).strip()):
        raise ValueError("the right answer is empty")
    if nesting < MAX_NESTING:
        if isinstance(value, list | tuple):
            return ListValue("sequence", tuple(value_of(item, nesting + 1) for item in value))
        if isinstance(value, set | frozenset):
            return ListValue("{}", tuple(value_of(item, nesting + 1) for item in value))
    return parse_value(clean(str(value)), nesting + 1) if nesting <= MAX_NESTING else TextValue(str(value))


def _values(parts: Sequence[str], nesting: int) -> tuple[Value, ...]:
    return tuple(parse_value(clean(part), nesting + 1) for part in parts)


def is_container(text: str) -> bool:
    """Return True if a text is a list, set or tuple from its first to its last character."""
    closing = _BRACKETS.get(text[:1], "")
    return bool(closing) and text[-1:] in closing and (text[0] != "(" or "," in text) and encloses(text)


def encloses(text: str) -> bool:
    """Return True if the bracket at the start closes at the end."""
    return closing_at(text, 0, "([{)]}") == len(text) - 1


def closing_at(text: str, start: int, brackets: str) -> int | None:
    """Return the index at which the bracket at `start` closes, None if it does not.

    `brackets` are the opening characters, then as many closing ones; any of these closes any of those.
    """
    opening, closing = brackets[: len(brackets) // 2], brackets[len(brackets) // 2 :]
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] in opening) - (text[at] in closing)
        if depth == 0:
            return at
    return None


def _split(text: str) -> list[str]:
    """Return the parts between commas or semicolons outside brackets; [] of an empty text.

    If a space follows separating commas, a comma without a space groups thousands: 1,000, 2,000 are two numbers.
    """
    if re.search(r"[,;]\s", text):
        text = _without_groups(text)
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character in ",;" and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [part.strip() for part in (*parts, text[start:])] if text.strip() else []
