"""The math agent's prompt and tool, and demonstrations of its conversation.

The agent, the prompts for rewards and the examples to imitate all use these texts, so that examples have exactly the
tokens that the agent sees. A row with the `style` "text" is a conversation without the tool: the worked solution is the
answer.
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
"""System prompt without a tool."""
MAX_TURNS: Final = 10
"""Model calls of a conversation: most problems of GSM8K need two to eight calculations, and the answer."""
TOOLS: Final = [CALCULATOR_TOOL]
"""Tools of every call, also rendered into the prompt of an example."""
use_tool: Final = partial(use_text_tool, CALCULATOR)
"""Runs a call of the calculator: (name, JSON arguments) → result, or "error: …" for an invalid call."""

_MARK = re.compile(r"<<([^<>=]*)=([^<>]*)>>")
_EQUATION = re.compile(r"([-+*/×÷x\d.,$%() ]{3,80})=\s*\$?(-?\d[\d,]*(?:\.\d+)?)")
_BEFORE_EXPRESSION = re.compile(r"^[^\d($.-]+|^[.,\s]+(?!\d)")
_OPERATOR = re.compile(r"[\d)%]\s*[-+*/×÷x]\s*[$(.\d-]")


def tools_for(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tools of a row."""
    return [] if row.get("style") == TEXT else list(TOOLS)


def opening(row: Mapping[str, Any], system_prompt: str | None = None) -> list[Message]:
    """Return the first messages of a conversation. The default `system_prompt` depends on the row's style.

    Raises:
        ValueError: the row has no question.
    """
    question = row.get("question")
    if not question:
        raise ValueError('a task of the math agent needs a "question"')
    usual = TEXT_PROMPT if row.get("style") == TEXT else SYSTEM_PROMPT
    return [system(usual if system_prompt is None else system_prompt), user(str(question))]


def can_be_shown(row: Mapping[str, Any]) -> bool:
    """Return True if a row has an `expression`, or a `solution` that ends in "#### 42"."""
    return bool(row.get("expression")) or "####" in str(row.get("solution", ""))


def demonstration(row: Mapping[str, Any], *, system_prompt: str | None = None, think: bool = True) -> list[Message]:
    """Return the OpenAI messages of a correct conversation.

    An `expression` becomes one calculator call per operation: a small model learns the next operation, given the
    results so far, more easily than a whole expression. With `think` the first call comes with the row's `thought`. A
    `solution` as in GSM8K keeps its text, and each mark such as <<48/2=24>>, or without marks each equation such as
    48/2 = 24, becomes a call. Results are the calculator's; a calculation whose result differs stays text. The last
    line is "Answer: N"; it is the whole answer of a row without expression and solution.

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
    """Return each operation with its result; the whole expression if the steps do not give the answer, because the
    calculator rounds each result or the expression has functions."""
    expression = str(row["expression"])
    try:
        lines = working(as_told(operations(expression), str(row["question"])))
    except ValueError:
        return [(expression, answer)]
    steps = [line.partition("=")[0].replace(" ", "") for line in lines]
    calculated = [(step, calculate(step)) for step in steps]
    shown = [line.partition("=")[2].strip() for line in lines]
    return calculated if [result for _, result in calculated] == shown else [(expression, answer)]


def _calls(solution: str, answer: str) -> list[Message]:
    """Return the text of a worked solution with its calculations as calls."""
    text = solution.rpartition("####")[0].strip()
    marks = list(_MARK.finditer(text)) or list(_EQUATION.finditer(text))
    messages: list[Message] = []
    done = 0
    for mark in marks:
        expression = _BEFORE_EXPRESSION.sub("", mark[1]).strip()
        result = calculate(expression)
        if not _OPERATOR.search(expression) or not _is_rounded(mark[2], result):
            continue
        name = f"call_{len(messages) // 2 + 1}"
        end = mark.start() if mark[0].startswith("<<") else mark.end(1)
        messages += [_call(name, expression, _words(text[done:end]) or None), _result(name, result)]
        done = mark.end() if mark[0].startswith("<<") else mark.start(2)
    rest = _MARK.sub("", text[done:]).strip()
    return [*messages, assistant(f"{rest}\nAnswer: {answer}" if rest else f"Answer: {answer}")]


def _call(name: str, expression: str, words: str | None) -> Message:
    function = {"name": CALCULATOR_TOOL["function"]["name"], "arguments": json.dumps({"expression": expression})}
    calls = [{"id": name, "type": "function", "function": function}]
    return {"role": "assistant", "content": words, "tool_calls": calls}


def _result(name: str, result: str) -> Message:
    return {"role": "tool", "tool_call_id": name, "content": result}


def _words(text: str) -> str:
    """Return the text before a call, without unused marks and the sign before the result."""
    return _MARK.sub("", text).strip().rstrip("=$ ").rstrip()


def _is_rounded(written: str, result: str) -> bool:
    """Return True if a written number is the calculator's result, possibly with fewer digits."""
    try:
        shown, exact = (Fraction(text.replace(",", "").strip(" $")) for text in (written, result))
    except (ValueError, ZeroDivisionError):
        return False
    places = len(written.partition(".")[2].strip())
    return abs(shown - exact) < Fraction(1, 10**places)


# Small talk, mixed into a warm start so that a model which learns to call its tool still answers a greeting with words.


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
    """Return short conversations without a task, under the math agent's system prompt."""
    return [[system(SYSTEM_PROMPT), user(text), assistant(reply)] for text, reply in _PAIRS]
