"""Emitters: what an agent or a hook says about its rollout, as spans. The readers give it back.

Without `propagate=False` an emitter needs an open trace in its task and raises RuntimeError where there is none.
"""

from .annotation import OperationContext, emit_annotation, operation
from .exception import emit_exception
from .message import emit_message
from .object import emit_object
from .readers import (
    RewardDimension,
    find_final_reward,
    find_reward_spans,
    get_message_value,
    get_object_value,
    get_reward_value,
    get_rewards_from_span,
    is_reward_span,
)
from .reward import emit_reward, reward

__all__ = [
    "OperationContext",
    "RewardDimension",
    "emit_annotation",
    "emit_exception",
    "emit_message",
    "emit_object",
    "emit_reward",
    "find_final_reward",
    "find_reward_spans",
    "get_message_value",
    "get_object_value",
    "get_reward_value",
    "get_rewards_from_span",
    "is_reward_span",
    "operation",
    "reward",
]
