"""The work that `grpo_step.py` measures, the same for both sides: prompts and tool results of an exact length."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

TEMPLATE = """{%- if tools %}<|im_start|>system
You may call these tools:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{%- if message.name %} {{ message.name }}{% endif %}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>{{ call.function | tojson }}</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""ChatML with tools; earlier messages come out the same whatever follows."""

FILLER = " the"


@dataclass(frozen=True)
class Workload:
    """One GRPO step: every task is sampled several times, every sample takes turns of exactly so many new tokens."""

    tasks: int = 4
    samples: int = 8
    prompt_tokens: int = 375
    new_tokens: int = 64
    turns: int = 1
    tool_tokens: int = 60
    """Tokens of a tool's result, between two turns."""


def lookup(key: str) -> str:
    """Look something up.

    Args:
        key: what to look up.
    """
    return key


TOOL_SCHEMA = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look something up.",
        "parameters": {
            "type": "object",
            "properties": {"key": {"type": "string", "description": "what to look up."}},
            "required": ["key"],
        },
    },
}


def conversations(tokenizer: Any, work: Workload) -> list[list[dict[str, str]]]:
    """One conversation for each task, of exactly `prompt_tokens` tokens when rendered; no two begin alike."""
    tools = [TOOL_SCHEMA] if work.turns > 1 else None

    def conversation(task: int, filler: str) -> list[dict[str, str]]:
        system = f"{task}: you answer step by step.{filler}"
        return [{"role": "system", "content": system}, {"role": "user", "content": "What comes next?"}]

    return [
        conversation(
            task,
            _filler(
                lambda filler, task=task: len(render(tokenizer, conversation(task, filler), tools)),  # type: ignore[misc]
                work.prompt_tokens,
            ),
        )
        for task in range(work.tasks)
    ]


def render(tokenizer: Any, messages: list[dict[str, str]], tools: Any = None) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template(
        messages, tools=tools, chat_template=TEMPLATE, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return ids


def tool_result(tokenizer: Any, work: Workload) -> str:
    """A result that makes the text between two turns `tool_tokens` tokens long."""
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "lookup", "arguments": {}}}]}
    before: list[Any] = [{"role": "user", "content": ""}, call]
    ids = tokenizer.apply_chat_template(before, chat_template=TEMPLATE, tokenize=True, return_dict=False)
    kept = len(ids) - ids[::-1].index(tokenizer.eos_token_id)

    def length(filler: str) -> int:
        return len(render(tokenizer, [*before, {"role": "tool", "name": "lookup", "content": filler}])) - kept

    return _filler(length, work.tool_tokens)


def _filler(length: Callable[[str], int], wanted: int) -> str:
    """Words with which `length` is exactly as wanted."""
    least = length("")
    each = (length(FILLER * 16) - least) / 16
    text = FILLER * max(0, int((wanted - least) / each) - 1)
    for piece in (FILLER, " a", ".", "x"):
        while length(text) < length(text + piece) <= wanted:
            text += piece
    if length(text) != wanted:
        raise SystemExit(f"{wanted} tokens cannot be made with this tokenizer: the least is {least}")
    return text


def child_parser(description: str) -> argparse.ArgumentParser:
    """Options that both sides take."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", required=True, help="folder of the model")
    parser.add_argument("--dtype", required=True, choices=["float32", "bfloat16"])
    parser.add_argument("--device", required=True)
    parser.add_argument("--warmup", type=int, default=1, help="steps before those that count")
    parser.add_argument("--steps", type=int, default=1, help="steps that count")
    for part in fields(Workload):
        parser.add_argument(f"--{part.name.replace('_', '-')}", type=int, default=part.default)
    return parser


def workload_of(options: argparse.Namespace) -> Workload:
    return Workload(**{part.name: getattr(options, part.name) for part in fields(Workload)})


def print_result(work: Workload, **metrics: Any) -> None:
    """The last line of a child's output."""
    print(json.dumps({"work": asdict(work), **metrics}), flush=True)
