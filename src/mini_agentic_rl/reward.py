"""The reward functions under their older module name.

The decorator `reward` and this module share a name at the top of the package; so that either will do, the module can be
called as the decorator.
"""

import sys
from types import ModuleType
from typing import Any

from .emitter import (
    emit_reward,
    find_final_reward,
    find_reward_spans,
    get_reward_value,
    get_rewards_from_span,
    is_reward_span,
    reward,
)

__all__ = [
    "emit_reward",
    "find_final_reward",
    "find_reward_spans",
    "get_reward_value",
    "get_rewards_from_span",
    "is_reward_span",
    "reward",
]


class _Decorator(ModuleType):
    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return reward(*args, **keywords)


sys.modules[__name__].__class__ = _Decorator
