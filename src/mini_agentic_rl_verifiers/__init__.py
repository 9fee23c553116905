"""The door to the package `verifiers` (0.4 or later), under whose ids a module of the top level is looked up.

- As a taskset, `mini-agentic-rl-verifiers` has the tasks of any environment of ours (`world="countdown"`), and whoever
  trains on environments of `verifiers` can train on them.
- As a program (a harness), it plays a seat from the process that calls it: a task of ours as our own agent does, and
  any other by a conversation with the tools that the task brings.
"""

from .program import ConversationProgram
from .tasks import WorldTaskset

__all__ = ["ConversationProgram", "WorldTaskset"]
