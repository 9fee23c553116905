"""Conversations on a terminal: roles in colours, tool calls and their results set off, long texts cut and said to be.

What is shown was written by others: `VisibleConsole` lets none of it steer the terminal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from ..metrics import counted
from ..visible_text import visible, visible_line

_ROLES: Final[Mapping[str, str]] = {
    "system": "magenta",
    "developer": "magenta",
    "user": "blue",
    "assistant": "green",
    "tool": "yellow",
}
_MARGIN: Final = (0, 0, 0, 2)


def conversation_texts(told: Sequence[Mapping[str, Any]], attempts: Sequence[str]) -> list[RenderableType]:
    """Return what prints conversations as `dashboard.conversations` tells them.

    Args:
        attempts: ids of the rollout's attempts in order; which one a conversation is of is told where there are
            several.
    """
    parts: list[RenderableType] = []
    for one in told:
        parts.append(_head(one, attempts))
        parts += [_message(message) for message in one["messages"]]
    return parts


def _head(told: Mapping[str, Any], attempts: Sequence[str]) -> Rule:
    parts = ["Conversation"]
    if len(attempts) > 1 and told["attempt"] in attempts:
        parts.append(f"attempt {attempts.index(told['attempt']) + 1}")
    parts.append(counted(told["calls"], "LLM call"))
    if told["tools"]:
        parts.append(f"tools: {', '.join(map(visible_line, told['tools']))}")
    return Rule(Text(", ".join(parts), "bold"), align="left", style="dim")


def _message(message: Mapping[str, Any]) -> Group:
    role = message["role"]
    colour = _ROLES.get(role, "cyan")
    head = Text(visible_line(role) or "?", f"bold {colour}")
    if message["answers"]:
        head.append(f"  answers {visible_line(message['answers'])}", "dim")
    parts: list[RenderableType] = [head]
    if message["content"]["text"]:
        parts.append(Padding(_text(message["content"], ""), _MARGIN))
    for call in message["calls"]:
        name = Text.assemble(("→ ", "bold cyan"), (visible_line(call["name"]["text"]), "bold cyan"), " ")
        parts.append(Padding(name.append_text(_text(call["arguments"], "cyan")), _MARGIN))
    return Group(*parts)


def _text(text: Mapping[str, Any], style: str) -> Text:
    shown = Text(visible(text["text"]), style)
    if text["more"]:
        shown.append(f" … ({counted(text['more'], 'more character')}; --full shows them)", "dim")
    return shown
