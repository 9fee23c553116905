"""Observations as targets: what tools and users said is predicted beside the policy gradient (ECHO; Shrivastava et al.
2026, arXiv:2605.24517).

    L = L_policy + lambda * 1/N * sum over rollouts i of 1/|O_i| * sum over t in O_i of -log pi(o_t | all before it)

O_i are the tokens of a rollout that stand in its context after its first call, and that it did not sample; lambda is
the setting `echo_coef` (0.05 in the paper). All of the N rollouts of a step count, those of groups with equal rewards
too: where the policy gradient has nothing to say, the environment still has.

A token is an observation where a call continues an earlier one token by token: it stands between the end of that one
and its own beginning. So the turn's own markup, which the chat template writes around what was said, is part of it. A
call that begins anew has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...tokens import CompletionRecord
from ..loop.groups import Group
from .batch import Imitated


def observations(groups: Sequence[Group], coef: float) -> list[Imitated]:
    """Return what the environment said in the rollouts of `groups`, weighed for the loss."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    found: list[Imitated] = []
    for trajectory in trajectories:
        own = list(observed(trajectory.records))
        size = sum(record.output_ids.size for record in own)
        found += [Imitated(record, coef / (len(trajectories) * size), "echo") for record in own]
    return found


def observed(records: Sequence[CompletionRecord]) -> Iterator[CompletionRecord]:
    """Yield each observation of one rollout, as a record whose output it is. Choices that continue in the same words
    (of one request with n > 1) share theirs."""
    before: list[np.ndarray] = []
    seen: set[bytes] = set()
    for record in records:
        prompt = record.prompt_ids
        starts = [ids.size for ids in before if ids.size < prompt.size and np.array_equal(prompt[: ids.size], ids)]
        if starts and prompt.tobytes() not in seen:
            start = max(starts)
            said = prompt[start:]
            yield CompletionRecord(prompt[:start], said, np.zeros(said.size, np.float32))
        seen.add(prompt.tobytes())
        before.append(np.concatenate([prompt, record.output_ids]))
