"""`LLMProxy` under the name that agent-lightning gives its module."""

from .gateway.proxy import LLMProxy

__all__ = ["LLMProxy"]
