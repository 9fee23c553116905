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
_DIGIT = re.compile(r"[^\D0-9]")
_PERCENT = re.compile(r"百分之\s*(\d+(?:\.\d+)?)")
_FRACTION = re.compile(r"(?<!\d)(\d{1,15})\s*(?:分之|分の|분의)\s*(\d+)")
_MINUS = re.compile(r"(?:负|負|マイナス)\s*(?=\d)")


def in_ascii_numbers(text: str) -> str:
    """Return the text with its numbers, full-width characters and punctuation in ASCII; words stay as they are.

    ４２ and ٤٢ are 42, 百分之42 is 42%, 3分之2 is 2/3, and 负42 is -42.
    """
    if text.isascii():
        return text
    text = _DIGIT.sub(lambda digit: str(unicodedata.decimal(digit[0])), text.translate(_MARKS))
    return _MINUS.sub("-", _FRACTION.sub(r"\2/\1", _PERCENT.sub(r"\1%", text)))
