"""Adapters convert the spans of a rollout to the data that an algorithm learns from. Pure: no store, no model."""

from .base import Adapter, OtelTraceAdapter, TraceAdapter
from .messages import OpenAIMessages, TraceToMessages, parsed_messages
from .records import TraceToRecords, spans_to_records
from .selection import Selection, TraceToTokenTree, TrainedCalls
from .triplet import LlmProxyTraceToTriplet, RewardMatchPolicy, TracerTraceToTriplet, TraceToTripletBase

__all__ = [
    "Adapter",
    "LlmProxyTraceToTriplet",
    "OpenAIMessages",
    "OtelTraceAdapter",
    "RewardMatchPolicy",
    "Selection",
    "TraceAdapter",
    "TraceToMessages",
    "TraceToRecords",
    "TraceToTokenTree",
    "TraceToTripletBase",
    "TracerTraceToTriplet",
    "TrainedCalls",
    "parsed_messages",
    "spans_to_records",
]
