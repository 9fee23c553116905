"""`LLMConfig` under the name by which callers of HelloAgents import it; see `agents.simple_agent`."""

from .agents.simple_agent import LLMConfig

__all__ = ["LLMConfig"]
