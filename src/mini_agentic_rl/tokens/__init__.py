"""Tokens: what is asked of a sampler, what it drew, and the tree that training sees. numpy only."""

from .record import CompletionRecord
from .request import FinishReason, SamplingParams, TokenDelta, TokenRequest

__all__ = ["CompletionRecord", "FinishReason", "SamplingParams", "TokenDelta", "TokenRequest"]
