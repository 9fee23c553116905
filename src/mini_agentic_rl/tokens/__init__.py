"""Tokens: what is asked of a sampler, what it drew, and the tree that training sees. numpy only."""

from .chunks import TreeChunk, cut, most_alive
from .packing import PackedTrees, pack
from .record import CompletionRecord
from .request import ConstraintError, Delivery, FinishReason, SamplingParams, TokenConstraint, TokenDelta, TokenRequest
from .tree import NodeId, TokenTree

__all__ = [
    "CompletionRecord",
    "ConstraintError",
    "Delivery",
    "FinishReason",
    "NodeId",
    "PackedTrees",
    "SamplingParams",
    "TokenConstraint",
    "TokenDelta",
    "TokenRequest",
    "TokenTree",
    "TreeChunk",
    "cut",
    "most_alive",
    "pack",
]
