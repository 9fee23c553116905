"""Agents that ship with the package: ordinary client code, trained through its `base_url`.

`math_agent` is the agent and its reward; `math_protocol`, its conversation, needs nothing of the framework.
`SimpleAgent` is not trained: it talks to a person, and may use tools.
"""

from __future__ import annotations

from typing import Any

__all__ = ["LLMConfig", "SimpleAgent"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from . import simple_agent

        return getattr(simple_agent, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
