"""Emitters record facts about a rollout as spans; readers get them back from the spans.

Without `propagate=False` an emitter needs an open trace in its task and raises RuntimeError where there is none.
"""

from .annotation import OperationContext, emit_annotation, operation
from .emit import emit_exception, emit_message, emit_object, emit_trainable_agent
from .links import (
    SpanLink,
    extract_links_from_attributes,
    extract_tags_from_attributes,
    make_link_attributes,
    make_tag_attributes,
    query_linked_spans,
)
from .readers import (
    RewardDimension,
    find_final_reward,
    find_reward_spans,
    find_trainable_agents,
    get_message_value,
    get_object_value,
    get_reward_value,
    get_rewards_from_span,
    is_reward_span,
    is_rollout_reward,
)
from .reward import emit_reward, reward

__all__ = [
    "OperationContext",
    "RewardDimension",
    "SpanLink",
    "emit_annotation",
    "emit_exception",
    "emit_message",
    "emit_object",
    "emit_reward",
    "emit_trainable_agent",
    "extract_links_from_attributes",
    "extract_tags_from_attributes",
    "find_final_reward",
    "find_reward_spans",
    "find_trainable_agents",
    "get_message_value",
    "get_object_value",
    "get_reward_value",
    "get_rewards_from_span",
    "is_reward_span",
    "is_rollout_reward",
    "make_link_attributes",
    "make_tag_attributes",
    "operation",
    "query_linked_spans",
    "reward",
]
