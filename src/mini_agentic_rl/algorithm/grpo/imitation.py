"""Imitation beside the policy gradient: what the environment said, and demonstrations.

Observations (ECHO; Shrivastava et al. 2026, arXiv:2605.24517) are what tools and users said:

    L = L_policy + lambda * 1/N * sum over rollouts i of 1/|O_i| * sum over t in O_i of -log pi(o_t | all before it)

O_i are the tokens in the context of a rollout after its first call that it did not sample; lambda is the setting
`echo_coef` (0.05 in the paper). All N rollouts of a step count, those of groups with equal rewards too. A token is an
observation where a call continues an earlier one token by token: it stands between the end of that one and the
beginning of the call's own output, so the markup of the chat template is part of it. A call that begins anew has none.

Demonstrations keep what was imitated before, and teach tasks that are never solved:

    L = L_policy + sft_coef * mean over the demonstrations' tokens of -log pi(token)

This is the combination of the two losses in one step of CHORD (Zhang et al. 2025, arXiv:2508.11408), with a constant
coefficient and without its weights of single tokens. The conversations are rendered as in the warm-up, and share their
beginning with the tree of the rollouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...gateway import ChatRenderer
from ...tokens import CompletionRecord
from ...types import Dataset
from ..loop.groups import Group
from ..seeds import derive_seed
from ..settings import WarmStart
from .batch import Imitated


def observations(groups: Sequence[Group], coef: float) -> list[Imitated]:
    """Return the observations in the rollouts of `groups`, weighed for the loss."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    imitated: list[Imitated] = []
    for trajectory in trajectories:
        own = list(observed(trajectory.records))
        size = sum(record.output_ids.size for record in own)
        imitated += [Imitated(record, coef / (len(trajectories) * size), "echo") for record in own]
    return imitated


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


class DemonstrationSource:
    """Conversations about training tasks, drawn anew for each step."""

    def __init__(
        self,
        warm_start: WarmStart,
        dataset: Dataset[Mapping[str, Any]],
        renderer: ChatRenderer,
        *,
        count: int,
        seed: int,
    ) -> None:
        """`count` conversations are drawn for a step."""
        self._warm_start = warm_start
        self._dataset = dataset
        self._renderer = renderer
        self._count = count
        self._seed = seed

    def draw(self, step: int) -> list[CompletionRecord]:
        """Return the conversations of an optimizer step, a record per turn of the assistant; `step` says which are
        drawn, and nothing else does."""
        size = len(self._dataset)
        drawn = np.random.default_rng(derive_seed(self._seed, "demonstrations", step)).choice(
            size, min(self._count, size), replace=False
        )
        return [
            record
            for row in drawn
            for record in self._renderer.conversation_to_records(
                self._warm_start.demonstration(self._dataset[int(row)]), self._warm_start.tools
            )
        ]


def demonstrated(records: Sequence[CompletionRecord], coef: float) -> list[Imitated]:
    """Return the records weighed for the loss: the mean over all of their tokens, times `coef`."""
    size = sum(record.trained_tokens for record in records)
    return [Imitated(record, coef / size, "sft") for record in records]
