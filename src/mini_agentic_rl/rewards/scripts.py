"""Digits, punctuation and number words of other scripts, as the patterns that read answers expect them."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

UNCASED: Final = (
    "\u0590-\u1cff\u2e80-\u2fdf\u3005-\u3007\u3021-\u9fff\ua000-\ua4cf\uac00-\ud7ff\uf900-\ufaff\ufb1d-\ufdff"
    "\ufe70-\ufefe\uff66-\uffdc\U0001b000-\U0001b2ff\U00020000-\U000323af"
)
"""Inside of a character class: letters of scripts without case, from Hebrew to Chinese and Korean. Such a word may
stand next to a number without a space, as in 共42元, so these letters bound a number as a space does."""

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
_UNITS = {"十": 10, "百": 100, "千": 1000, "万": 10**4, "亿": 10**8}
_SINGLE = "〇零一二三四五六七八九两兩壹贰貳叁參肆伍陆陸柒捌玖"
_ALL = f"{_SINGLE}十百千万亿拾佰仟萬億"
_RUN = re.compile(rf"(?<![\d{_ALL}])([{_ALL}]{{1,20}})(?![{_ALL}])(?:[点點]([{_SINGLE}]{{1,20}})(?![{_ALL}]))?")
_BELOW = r"(?:[一-九]千〇?)?(?:[一-九]百〇?)?(?:[一-九]?十)?[一-九]?".replace("一-九", _ONES[1:])
_WELL_FORMED = re.compile(rf"(?=[{_ONES[1:]}十])(?:{_BELOW}亿〇?)?(?:{_BELOW}万〇?)?{_BELOW}")
_COUNTED = re.compile("[个個只元块塊米人次天年月岁歲本张張条條辆輛件名位分]?")
"""A measure word behind an answer of one numeral."""
_DIGIT = re.compile(r"[^\D0-9]")
_PERCENT = re.compile(r"百分之\s*(\d+(?:\.\d+)?)")
_FRACTION = re.compile(r"(?<!\d)(\d{1,15})\s*(?:分之|分の|분의)\s*(\d+)")
_MINUS = re.compile(r"(?:负|負|マイナス)\s*(?=\d)")


def in_ascii_numbers(text: str) -> str:
    """Return the text with its numbers, full-width characters and punctuation in ASCII; words stay as they are.

    ４２ and ٤٢ are 42, 百分之42 is 42%, 3分之2 is 2/3, and 负42 is -42. Numerals are read where they are no part of a
    word: 四十二 is 42, 三点五 is 3.5, 二〇二四 is 2024, and 四 is 4 where the text is nothing else.
    """
    if text.isascii():
        return text
    text = _RUN.sub(_read_numeral, text)
    text = _DIGIT.sub(lambda digit: str(unicodedata.decimal(digit[0])), text.translate(_MARKS))
    return _MINUS.sub("-", _FRACTION.sub(r"\2/\1", _PERCENT.sub(r"\1%", text)))


def _read_numeral(found: re.Match[str]) -> str:
    """Return a Chinese or Japanese numeral in ASCII; what may be a part of a word as it stands."""
    run, decimals = found[1].translate(_NUMERALS), (found[2] or "").translate(_NUMERALS)
    before, after = found.string[: found.start()].rstrip(), found.string[found.end() :].strip()
    alone = before in ("", "-", "负", "負", "マイナス") and _COUNTED.fullmatch(after) is not None
    is_part = before.endswith(("分之", "分の")) or after.startswith(("分之", "分の"))
    if set(run) <= set(_ONES):  # digit by digit
        if not (alone or is_part or decimals or (len(run) > 2 and "〇" in run)):
            return found[0]
        whole = "".join(str(_ONES.index(one)) for one in run)
    elif (len(run) > 1 or alone or is_part) and _WELL_FORMED.fullmatch(run):
        whole = str(_value(run))
    else:
        return found[0]
    return whole + ("." + "".join(str(_ONES.index(one)) for one in decimals) if decimals else "")


def _value(run: str) -> int:
    total = section = digit = 0
    last = 1
    for one in run:
        if one in _ONES:
            digit = _ONES.index(one)
            last = last if digit else 1
        elif _UNITS[one] < 10**4:
            section += (digit or 1) * _UNITS[one]
            digit, last = 0, _UNITS[one]
        else:
            total, section, digit, last = total + (section + digit) * _UNITS[one], 0, 0, _UNITS[one]
    return total + section + digit * (last // 10 if last > 10 else 1)  # 二百五 is 250
