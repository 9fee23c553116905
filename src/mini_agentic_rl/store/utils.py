"""The state machine's functions under agent-lightning's module name; see `lifecycle`."""

from .lifecycle import (
    attempt_after_span,
    attempt_with_status,
    overdue_status,
    rollout_following,
    rollout_with_status,
)

__all__ = ["attempt_after_span", "attempt_with_status", "overdue_status", "rollout_following", "rollout_with_status"]
