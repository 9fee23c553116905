r"""Finds the answer in a reply.

Explicit forms win over plain text, and of several the last: \boxed{…}, "Answer: …" or "the answer is …", "#### …".
Without one of them the answer is the whole reply where that is short and no sentence, else its last number or option.
"""

from __future__ import annotations

import re

from .values import clean, is_container, parse_number

MAX_TEXT = 20_000
"""Characters at the end of a reply that are looked at."""
MAX_ANSWER = 400
"""Characters of an answer; a longer one is none."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)|\\boxed\s+(?=[\w-])")
_LINE = re.compile(
    r"\banswer\b[*_ \t]*(?:(?:is|are|was)\b|[:=])[*_: \t]*(?:\n[ \t]*)?(?P<answer>\S[^\n]*)"
    r"|####[ \t]*(?P<hashes>[^\s][^\n]*)",
    re.IGNORECASE,
)
_NUMBER = re.compile(
    r"(?<![\w.])[-−]?[$€£]?[-−]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:(?<=\d)\.\d+|(?<![\d.])\.\d+)?(?<=\d)"
    r"(?:[eE][+-]?\d+\b)?(?:[ ]?/[ ]?\d+(?![\d/]))?[ ]?%?"
)
_OPTION = re.compile(r"\([ \t]?([A-Za-z])[ \t]?\)|\b(?:option|choice)\s+\(?([A-Za-z])\b")
_LETTER = re.compile(r"[(\[]?\s*([A-Za-z])\s*[)\]]?")
_CHOSEN = re.compile(r"(?:option |choice )?(?:\( ?)?([A-Za-z])(?: ?\))?(?:[.):,].*)?|\( ?([A-Za-z]) ?\)\s.*")
_LEADING = re.compile(r"\s*\(?([A-Ja-j])[.):]\s")
_SENTENCE_END = re.compile(r"(?<!\bapprox)(?<!\babout)[.!?;](?=\s|$)", re.IGNORECASE)
_REMARK = re.compile(r"[,;] (?!(?:and|or)\b)(?=[A-Za-z]{2})")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_MATH_WORDS = frozenset({"sqrt", "sin", "cos", "tan", "log", "ln", "exp", "pi", "inf", "infty", "and", "or"})


def extract_answer(text: str, *, units: bool = False) -> str | None:
    """Return the answer in `text` without decoration ("Answer: about $1,234 in all." gives "1234"), None without any.

    Numbers come out plain: no thousands commas, currency, unit or "about"; a percent sign stays. Options, expressions
    and lists come out as they stand. A reply whose thinking block is still open has no answer yet. With `units` a
    number keeps a unit that is known: "5 km".
    """
    text = text[-MAX_TEXT:]
    if text.rfind("<think>") > text.rfind("</think>"):
        return None
    text = text.rpartition("</think>")[2].strip()
    marked = _marked(text)
    answer = _payload(marked, units) if marked is not None else _unmarked(text, units)
    return answer if answer and len(answer) <= MAX_ANSWER else None


def extract_option(text: str) -> str | None:
    """Return the option that a reply chooses, as an upper-case letter: of its answer, else the last one in brackets,
    else one that the reply begins with, as in "B. 42"."""
    answer = extract_answer(text)
    if answer is None:
        return None
    if option := _LETTER.fullmatch(answer):
        return option[1].upper()
    if options := _OPTION.findall(text[-MAX_TEXT:]):
        return "".join(options[-1]).upper()
    option = _LEADING.match(text)
    return option[1].upper() if option else None


def _marked(text: str) -> str | None:
    """Return the text after the last explicit marker."""
    boxes = [match.span() for match in _BOX.finditer(text)]
    lines = [match for match in _LINE.finditer(text) if not _BOX.search(match.group())]
    if boxes and (not lines or boxes[-1][0] > lines[-1].start()):
        return _braced(text, boxes[-1][1])
    return (lines[-1]["answer"] or lines[-1]["hashes"]) if lines else None


def _braced(text: str, start: int) -> str:
    """Return the inside of the braces that open at `start`, or the word there. "" when they never close."""
    if text[start] != "{":
        return text[start:].split(maxsplit=1)[0].strip("$.,")
    depth = 0
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start + 1 : at]
    return ""


def _payload(text: str, units: bool) -> str:
    """Return an answer that was announced, without the words around it."""
    answer = clean(text[: 3 * MAX_ANSWER])
    if is_container(answer):
        return answer
    if parse_number(answer) is None:
        answer = clean(_SENTENCE_END.split(answer, maxsplit=1)[0])
    number = parse_number(answer) or parse_number(_REMARK.split(answer, maxsplit=1)[0])
    if number is not None:
        return number.full_text if units else number.text
    if option := _CHOSEN.fullmatch(answer):
        return (option[1] or option[2]).upper() if len(answer) > 1 else answer
    if _prose(answer):
        return _last(answer) or answer
    return answer


def _unmarked(text: str, units: bool) -> str | None:
    if "\n" not in text and len(text) <= MAX_ANSWER:
        answer = clean(text)
        number = parse_number(answer)
        if number is not None:
            return number.full_text if units else number.text
        if is_container(answer) or not _prose(answer):
            return answer
    return _last(text) or (clean(text) if len(text.split()) <= 5 and not text.endswith(":") else None)


def _last(text: str) -> str | None:
    """Return the last number or option of a text; an option counts only where no number follows it."""
    numbers = [match for match in _NUMBER.finditer(text) if match.group().strip()]
    options = list(_OPTION.finditer(text))
    if options and (not numbers or options[-1].end() > numbers[-1].end()):
        return (options[-1][1] or options[-1][2]).upper()
    if not numbers:
        return None
    number = parse_number(numbers[-1].group().strip())
    return number.text if number else None


def _prose(text: str) -> bool:
    """Return True if a text holds words that are no mathematics."""
    return any(word.lower() not in _MATH_WORDS for word in _WORD.findall(text))
