"""The conversation of a model with a calculator: its prompt, its tool, and how it goes when it goes well.

The math agent, the prompts for rewards and the examples to imitate take their words from here, so that what is imitated
is token by token what the agent then sees. A row with the `style` "text" is a conversation without the tool: the
worked solution is the answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from fractions import Fraction
from functools import partial
from typing import Any, Final

from ...datasets import TEXT, Message, assistant, system, user
from ...tools import CALCULATOR, CALCULATOR_TOOL, calculate, use_text_tool
from .worked import as_told, operations, worked_solution, working

SYSTEM_PROMPT: Final = (
    'Solve the problem. Call the calculator with one operation at a time, then reply "Answer: N" with the last result.'
)
TEXT_PROMPT: Final = 'Solve the problem step by step. End with a line "Answer: N".'
"""The system prompt where no tool is offered."""
MAX_TURNS: Final = 10
"""Model calls of a conversation: most problems of GSM8K take two to eight calculations, and the answer."""
TOOLS: Final = [CALCULATOR_TOOL]
"""Tools to send with every call, and to render into the prompt of an example."""
use_tool: Final = partial(use_text_tool, CALCULATOR)
"""Runs a call of the calculator: (name, JSON arguments) → text for the model; "error: …" if the call makes no sense."""

_MARK = re.compile(r"<<([^<>=]*)=([^<>]*)>>")
_EQUATION = re.compile(r"([-+*/×÷x\d.,$%() ]{3,80})=\s*\$?(-?\d[\d,]*(?:\.\d+)?)")
_BEFORE_EXPRESSION = re.compile(r"^[^\d($.-]+|^[.,\s]+(?!\d)")
_OPERATOR = re.compile(r"[\d)%]\s*[-+*/×÷x]\s*[$(.\d-]")


def tools_for(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tools that are offered with a row."""
    return [] if row.get("style") == TEXT else list(TOOLS)


def opening(row: Mapping[str, Any], system_prompt: str | None = None) -> list[Message]:
    """Return the messages that a conversation begins with; without a `system_prompt` that of the row's style.

    Raises:
        ValueError: the row has no question.
    """
    question = row.get("question")
    if not question:
        raise ValueError('a task of the math agent needs a "question"')
    usual = TEXT_PROMPT if row.get("style") == TEXT else SYSTEM_PROMPT
    return [system(usual if system_prompt is None else system_prompt), user(str(question))]


def can_be_shown(row: Mapping[str, Any]) -> bool:
    """Return True if a row says how it is solved: by an `expression`, or by a `solution` that ends in "#### 42"."""
    return bool(row.get("expression")) or "####" in str(row.get("solution", ""))


def demonstration(row: Mapping[str, Any], *, system_prompt: str | None = None, think: bool = True) -> list[Message]:
    """Return the OpenAI messages of a conversation as it should be.

    An `expression` is one call of the calculator for each of its operations: which comes next, with the results so
    far in sight, is easier to learn for a small model than a whole expression. With `think` the row's `thought` is
    said with the first. A `solution` in the manner of GSM8K is said as it is written, and each mark such as
    <<48/2=24>> in it, or where there is none each equation such as 48/2 = 24, is a call. Results are what the
    calculator says, so that the trace is true; what it does not find as it is written stays words. The last line is
    "Answer: N", and all there is of a row that does not say how it is solved.

    Raises:
        ValueError: the row lacks a question, or the calculator cannot evaluate its expression.
    """
    begun = opening(row, system_prompt)
    if row.get("style") == TEXT:
        return [*begun, assistant(worked_solution(row).text)]
    if row.get("expression") or "answer" not in row:
        return [*begun, *_a_call_for_each_operation(row, think)]
    return [*begun, *_calls(str(row.get("solution", "")), str(row["answer"]))]


def _a_call_for_each_operation(row: Mapping[str, Any], think: bool) -> list[Message]:
    expression = str(row.get("expression", ""))
    answer = calculate(expression)
    if answer.startswith("error:"):
        raise ValueError(f"row {row.get('id')!r}: the expression {expression!r} gives {answer!r}")
    messages: list[Message] = []
    for number, (step, result) in enumerate(_steps(row, answer), 1):
        name, words = f"call_{number}", row.get("thought") if think and number == 1 else None
        messages += [_call(name, step, words), _result(name, result)]
    return [*messages, assistant(f"Answer: {answer}")]


def _steps(row: Mapping[str, Any], answer: str) -> list[tuple[str, str]]:
    """Return each operation with its result; the whole expression where the calculator would not get the answer so: it
    rounds each result, and an expression may hold more than operations."""
    expression = str(row["expression"])
    try:
        lines = working(as_told(operations(expression), str(row["question"])))
    except ValueError:
        return [(expression, answer)]
    steps = [line.partition("=")[0].replace(" ", "") for line in lines]
    found = [(step, calculate(step)) for step in steps]
    shown = [line.partition("=")[2].strip() for line in lines]
    return found if [result for _, result in found] == shown else [(expression, answer)]


def _calls(solution: str, answer: str) -> list[Message]:
    """Return the words of a worked solution with its calculations as calls between them."""
    text = solution.rpartition("####")[0].strip()
    found = list(_MARK.finditer(text)) or list(_EQUATION.finditer(text))
    messages: list[Message] = []
    said = 0
    for mark in found:
        expression = _BEFORE_EXPRESSION.sub("", mark[1]).strip()
        result = calculate(expression)
        if not _OPERATOR.search(expression) or not _is_rounded(mark[2], result):
            continue
        name = f"call_{len(messages) // 2 + 1}"
        end = mark.start() if mark[0].startswith("<<") else mark.end(1)
        messages += [_call(name, expression, _words(text[said:end]) or None), _result(name, result)]
        said = mark.end() if mark[0].startswith("<<") else mark.start(2)
    rest = _MARK.sub("", text[said:]).strip()
    return [*messages, assistant(f"{rest}\nAnswer: {answer}" if rest else f"Answer: {answer}")]


def _call(name: str, expression: str, words: str | None) -> Message:
    function = {"name": CALCULATOR_TOOL["function"]["name"], "arguments": json.dumps({"expression": expression})}
    calls = [{"id": name, "type": "function", "function": function}]
    return {"role": "assistant", "content": words, "tool_calls": calls}


def _result(name: str, result: str) -> Message:
    return {"role": "tool", "tool_call_id": name, "content": result}


def _words(text: str) -> str:
    """Return what is said before a call, without marks that are no calls and the sign that leads to the result."""
    return _MARK.sub("", text).strip().rstrip("=$ ").rstrip()


def _is_rounded(written: str, result: str) -> bool:
    """Return True if a number that was written is the calculator's result, perhaps with fewer digits."""
    try:
        shown, exact = (Fraction(text.replace(",", "").strip(" $")) for text in (written, result))
    except (ValueError, ZeroDivisionError):
        return False
    places = len(written.partition(".")[2].strip())
    return abs(shown - exact) < Fraction(1, 10**places)


# Small talk: what is said to an agent that is no task, and a good reply. Mixed into a warm-up, so that a model which
# learns to call its tool goes on answering a greeting with words.


_PAIRS: Final = (
    ("Hello!", "Hello! What would you like me to work out?"),
    ("Hi there", "Hi! How can I help you today?"),
    ("Good morning.", "Good morning! Do you have a problem for me?"),
    ("Good evening, how are you?", "Good evening! I am well, thank you. What can I do for you?"),
    ("Hey, what's up?", "Not much. I am ready to solve a problem with you."),
    ("How are you?", "I am fine, thank you. What shall we look at?"),
    ("Who are you?", "I am an assistant that solves word problems with a calculator."),
    ("What can you do?", "I read a word problem, compute it with a calculator, and tell you the answer."),
    ("What is your name?", "I have no name of my own. I am an assistant for problems with numbers."),
    ("Can you help me?", "Gladly. Tell me what you want to know."),
    ("I need help with my homework.", "I am happy to help. Please write the problem down for me."),
    ("Thanks!", "You are welcome!"),
    ("Thank you very much for your help.", "You are very welcome. Is there anything else?"),
    ("That was great.", "I am glad that it helped."),
    ("Goodbye!", "Goodbye! Come back with more problems."),
    ("See you tomorrow.", "See you tomorrow!"),
    ("Are you a robot?", "I am a computer program: a language model with a calculator."),
    ("Do you like mathematics?", "I enjoy working with numbers. Do you have a problem for me?"),
    ("Can you cook?", "No, I can only read, write and calculate."),
    ("What do you think of music?", "Music is a wonderful thing, but I cannot hear it. I can count its beats."),
    ("I am bored.", "Then let us solve a problem together. Tell me one!"),
    ("Sorry, I made a mistake.", "No problem at all. Please tell me what you meant."),
    ("Is this the right place for questions?", "Yes, it is. Ask me anything that can be computed."),
    ("Tell me something nice.", "It is good that you are here. Every problem is easier with company."),
)


def small_talk_conversations() -> list[list[Message]]:
    """Return conversations of one greeting, question or thanks and its reply, under the math agent's system prompt."""
    return [[system(SYSTEM_PROMPT), user(said), assistant(reply)] for said, reply in _PAIRS]
