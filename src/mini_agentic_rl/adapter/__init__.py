"""Adapters: from the spans of a rollout to what an algorithm learns from. Pure: no store, no model."""

from .base import Adapter, OtelTraceAdapter, TraceAdapter
from .messages import OpenAIMessages, TraceToMessages
from .records import TraceToRecords, spans_to_records
from .triplet import LlmProxyTraceToTriplet, RewardMatchPolicy, TracerTraceToTriplet, TraceToTripletBase

__all__ = [
    "Adapter",
    "LlmProxyTraceToTriplet",
    "OpenAIMessages",
    "OtelTraceAdapter",
    "RewardMatchPolicy",
    "TraceAdapter",
    "TraceToMessages",
    "TraceToRecords",
    "TraceToTripletBase",
    "TracerTraceToTriplet",
    "spans_to_records",
]
