"""The extension of the package `verifiers` (0.4 or later), which looks up its ids as modules of the top level.

- As a taskset, `mini-agentic-rl-verifiers` has the tasks of any environment of this package (`world="countdown"`), to
  train on them with other trainers that take environments of `verifiers`.
- As a program (a harness), it plays a seat from the calling process: tasks of this package as its agent does, all
  others by a conversation with the tools of the task.
"""

from .program import ConversationProgram
from .tasks import WorldTaskset

__all__ = ["ConversationProgram", "WorldTaskset"]
