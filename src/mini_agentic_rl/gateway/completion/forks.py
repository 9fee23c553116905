"""Prompts counted by how they came about: continued from the ids of earlier calls, begun, or forked for a reason."""

from __future__ import annotations

from collections import Counter
from typing import Literal, get_args

ForkReason = Literal["edited", "tools", "template", "thinking", "forgotten"]
"""Reason for which a prompt whose history holds answers of ours does not go on from all of their recorded ids:

- edited: the client changed the history.
- tools: the client offers other tools than before.
- template: the chat template writes earlier turns differently by now, e.g. without their thinking.
- thinking: thoughts are dropped from the history by the policy `thinking="drop"`.
- forgotten: the recorded ids had to make room.
"""


class PromptCounters:
    """Counts prompts by how they came about."""

    def __init__(self) -> None:
        self.continued = 0
        """Prompts that went on from recorded ids."""
        self.rendered = 0
        """Prompts that began a conversation."""
        self._forked: Counter[ForkReason] = Counter()

    @property
    def forked(self) -> int:
        """Prompts that forked, whatever the reason."""
        return sum(self._forked.values())

    def count(self, reason: ForkReason | None, *, continues: bool) -> None:
        """Count a prompt.

        Args:
            reason: why it forked; None when it did not.
            continues: whether it goes on from recorded ids.
        """
        if reason is not None:
            self._forked[reason] += 1
        elif continues:
            self.continued += 1
        else:
            self.rendered += 1

    def counts(self) -> dict[str, int]:
        """Return `continued`, `rendered`, `forked`, and `forked_<reason>` for each reason."""
        reasons = {f"forked_{reason}": self._forked[reason] for reason in get_args(ForkReason)}
        return {"continued": self.continued, "rendered": self.rendered, "forked": self.forked, **reasons}
