"""The gateway over servers of others."""

from .llm_proxy import LLMProxy
from .upstreams import ModelConfig

__all__ = ["LLMProxy", "ModelConfig"]
