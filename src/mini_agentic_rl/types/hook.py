"""Hooks: code of the user's that runs around each rollout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .core import Rollout
from .tracer import Span

if TYPE_CHECKING:  # a hook sees objects of higher floors; only their names are needed here
    LitAgent = Any
    Runner = Any
    Tracer = Any


class Hook:
    """Override what you need. Every method is called with keyword arguments and may be sync or async.

    A method receives the arguments that it names, out of those listed here plus `task` (the rollout's input; a
    parameter that is annotated `Task` gets one with the row in its `input`), so the shorter `on_rollout_end(self,
    rollout, task)` works as well. The final reward of the rollout is the number that `on_trace_end` or `on_rollout_end`
    returns, or else the one to which it sets `rollout.metadata["reward"]`; a later hook's replaces an earlier one's.
    """

    async def on_rollout_start(self, *, agent: LitAgent, runner: Runner, rollout: Rollout) -> Any:
        """Before anything of the attempt has run."""

    async def on_trace_start(self, *, agent: LitAgent, runner: Runner, tracer: Tracer, rollout: Rollout) -> Any:
        """Inside the trace, before the agent is called; spans made here belong to the attempt."""

    async def on_trace_end(self, *, agent: LitAgent, runner: Runner, tracer: Tracer, rollout: Rollout) -> Any:
        """Inside the trace, after the agent has returned or raised."""

    async def on_rollout_end(self, *, agent: LitAgent, runner: Runner, rollout: Rollout, spans: Sequence[Span]) -> Any:
        """After the trace: every span of the attempt is in the store. The usual place to score a rollout."""
