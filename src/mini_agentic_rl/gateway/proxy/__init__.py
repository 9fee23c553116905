"""The gateway over servers of others."""

from .llm_proxy import LLMProxy

__all__ = ["LLMProxy"]
