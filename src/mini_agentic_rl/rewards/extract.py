r"""Extract the answer from a reply.

The last explicit marker counts: \boxed{…}, "Answer: …", "the answer is …" or "#### …". Without a marker the answer is
the whole reply if it is short and no sentence, else its last number or option.
"""

from __future__ import annotations

import re

from .values import GROUPED, SCALE, UNCASED, clean, closing_at, in_ascii_numbers, is_container, parse_number

MAX_TEXT = 20_000
"""Characters at the end of a reply that are read."""
MAX_ANSWER = 400
"""Characters of the longest answer."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)|\\boxed\s+(?=[\w-])")
ANSWER_WORDS = (
    r"(?:\b(?:answer|antwort|antwoord|réponse|respuesta|resposta|risposta|ответ|відповідь|odpowiedź|cevap|jawaban"
    r"|đáp án|απάντηση)\b|答案|答え|答|正解|정답|답|คำตอบ|उत्तर|الجواب|الإجابة|תשובה)"
)
"""Words before an answer, in several languages."""
_LINE = re.compile(
    r"(?=[arocjđαов答正정답คउاת#])"  # the first letters of what follows: four times as fast
    rf"(?:{ANSWER_WORDS}[*_ \t】]*(?:(?:is|are|was|ist|lautet|est|es|é|è|là|adalah|είναι|है|هو|هي|היא|הוא|คือ)(?!\w)"
    r"|应该?[是为]|應該?[是為]|就?[是为為选選]|[はが은는]|[:=】])[*_: \t]*(?:\n[ \t]*)?(?P<answer>\S[^\n]*)"
    r"|####[ \t]*(?P<hashes>[^\s][^\n]*))",
    re.IGNORECASE,
)
_NUMBER = re.compile(
    rf"(?<![^\W{UNCASED}])(?<!\.)[-−]?[$€£¥]?[-−]?(?:{GROUPED}|\d+)?(?:(?<=\d)\.\d+|(?<![\d.])\.\d+)?(?<=\d)"
    rf"(?:[eE][+-]?\d+\b)?(?:[ ]?/[ ]?\d+(?![\d/]))?(?:[ ]?%|[ ]?{SCALE})?",
    re.IGNORECASE,
)
_OPTION = re.compile(
    r"\([ \t]?([A-Za-z])[ \t]?\)|(?:\b(?:option|choice)\s+|选项?|選項?|選択肢)\(?([A-Za-z])(?![A-Za-z])"
)
_LETTER = re.compile(r"[(\[]?\s*([A-Za-z])\s*[)\]]?")
_CHOSEN = re.compile(
    r"(?:option |choice |选项?|選項?)?(?:\( ?)?([A-Za-z])(?: ?\))?(?:[.):,].*)?|\( ?([A-Za-z]) ?\)\s.*"
)
_BRACKETED = re.compile(r"[(\[{](?:[^()\[\]{}A-Za-z,;]+[,;])+[^()\[\]{}A-Za-z,;]+[)\]}]")
_LEADING = re.compile(r"\s*\(?([A-Ja-j])[.):]\s")
_SENTENCE_END = re.compile(rf"(?<!\bapprox)(?<!\babout)[.!?;](?=\s|$|[{UNCASED}])", re.IGNORECASE)
_REMARK = re.compile(rf"[,;](?: (?!(?:and|or)\b)(?=[A-Za-z]{{2}})|(?= ?[{UNCASED}]))")
_WORD = re.compile(rf"(?<![\\A-Za-z])[A-Za-zÀ-ɏЀ-ӿ]{{2,}}|[{UNCASED}]")
_MATH_WORDS = frozenset({"sqrt", "sin", "cos", "tan", "log", "ln", "exp", "pi", "inf", "infty", "and", "or"})


def extract_answer(text: str, *, units: bool = False) -> str | None:
    """Return the answer in `text` ("Answer: about $1,234 in all." gives "1234"), or None.

    Numbers lose thousands commas, currency, unit and "about", and keep a percent sign; with `units` they keep a known
    unit: "5 km". Options, expressions and lists are not changed. A reply with an unclosed thinking block has no answer.
    """
    text = _final(text)
    marked = _marked(text)
    answer = _payload(marked, units) if marked is not None else _unmarked(text, units)
    return answer if answer and len(answer) <= MAX_ANSWER else None


def announced_text(text: str) -> str:
    """Return the answer with its words, such as "May 3, 2024": the first sentence after the last marker, or of a reply
    without a marker; "" without an answer."""
    text = _final(text)
    marked = _marked(text)
    return clean(_SENTENCE_END.split(clean(text if marked is None else marked), maxsplit=1)[0])


def extract_option(text: str) -> str | None:
    """Return the letter of the option that a reply chooses, in upper case.

    It is the answer, else the last letter in brackets, else the letter at the beginning, as in "B. 42".
    """
    answer = extract_answer(text)
    if answer is None:
        return None
    text = in_ascii_numbers(text[-MAX_TEXT:])
    if option := _LETTER.fullmatch(answer):
        return option[1].upper()
    if options := _OPTION.findall(text):
        return "".join(options[-1]).upper()
    option = _LEADING.match(text)
    return option[1].upper() if option else None


def _final(text: str) -> str:
    """Return the reply after its thinking block, with numbers in ASCII; "" if the block is not closed."""
    text = in_ascii_numbers(text[-MAX_TEXT:])
    return "" if text.rfind("<think>") > text.rfind("</think>") else text.rpartition("</think>")[2].strip()


def _marked(text: str) -> str | None:
    """Return the text after the last explicit marker."""
    boxes = [match.span() for match in _BOX.finditer(text)]
    lines = [match for match in _LINE.finditer(text) if not _BOX.search(match.group())]
    if boxes and (not lines or boxes[-1][0] > lines[-1].start()):
        start = boxes[-1][1]
        if text[start] != "{":
            return text[start:].split(maxsplit=1)[0].strip("$.,")
        end = closing_at(text, start, "{}")
        return "" if end is None else text[start + 1 : end]
    return (lines[-1]["answer"] or lines[-1]["hashes"]) if lines else None


def _payload(text: str, units: bool) -> str:
    """Return the answer in the text after a marker."""
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
    """Return the last number, bracketed list of numbers, or option of a text; an option only if no number follows."""
    numbers = [match for match in _NUMBER.finditer(text) if match.group().strip()]
    options = list(_OPTION.finditer(text))
    if options and (not numbers or options[-1].end() > numbers[-1].end()):
        return (options[-1][1] or options[-1][2]).upper()
    if not numbers:
        return None
    for match in _BRACKETED.finditer(text, text.rfind("\n", 0, numbers[-1].start()) + 1):
        if match.start() < numbers[-1].start() < match.end() and parse_number(match.group()[1:-1]) is None:
            return match.group()
    number = parse_number(numbers[-1].group().strip())
    return number.text if number else None


def _prose(text: str) -> bool:
    """Return True if a text has words that are not mathematical."""
    return any(word.lower() not in _MATH_WORDS for word in _WORD.findall(text))
