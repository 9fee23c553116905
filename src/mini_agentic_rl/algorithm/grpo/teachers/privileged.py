"""The policy as its own teacher, with more in its context than it had when it sampled (SDPO; Huebotter et al. 2026,
arXiv:2601.20802, "Reinforcement learning via self-distillation").

    pi_T(token | state) = pi(token | task, solution and feedback, what the rollout had said before)

The weights are those of the policy as they are before the step. A solution is what another rollout of the group said
that earned `teacher_reward` or more; feedback is what the agent, or a hook, recorded about the rollout as the
annotation `feedback`. Both are put, as text, at the end of the message that the rollout began with, where the chat
template ends it; the rest of the rollout stays token by token what it was. A rollout for which there is neither has
itself as its teacher, from which nothing is learnt. The paper lets the teacher follow the policy slowly (a moving mean
of the weights); here it is the policy of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ....gateway import ChatRenderer
from ....policy import Scorer
from ....tokens import CompletionRecord, TokenTree, pack
from ...losses.base import Floats, Ints

if TYPE_CHECKING:
    from ...loop.groups import Group, Trajectory
    from ..batch import TrainingBatch


class PrivilegedTeacher:
    """The policy's own weights over contexts that hold a solution and feedback."""

    def __init__(self, scorer: Scorer, renderer: ChatRenderer, *, reward: float, context_length: int) -> None:
        """
        Args:
            reward: least reward of a rollout that counts as a solution.
            context_length: tokens of a context, at most; a rollout that would be longer is left as it was.
        """
        self._scorer = scorer
        self._renderer = renderer
        self._reward = reward
        self._context_length = context_length
        self._ending = ending_of_a_message(renderer)

    def logprobs(self, batch: TrainingBatch) -> Floats:
        found_S = batch.packed.behaviour_logprobs_S.astype(np.float64)
        if batch.calls:
            found_S[: batch.sampled_terms] = self._scorer.logprobs(pack([self._tree(batch)])).double().cpu().numpy()
        return found_S

    def likeliest(self, batch: TrainingBatch, count: int) -> tuple[Ints | None, npt.NDArray[np.float32]]:
        if not batch.calls:
            return np.zeros((batch.packed.term_count, 1), np.int64), np.zeros((batch.packed.term_count, 1), np.float32)
        found = self._scorer.likeliest(pack([self._tree(batch)]), count)
        # Imitated terms weigh nothing in the divergence; what stands there has to be a number only.
        rest = ((0, batch.packed.term_count - batch.sampled_terms), (0, 0))
        tokens_SK = None if found.tokens_SK is None else np.pad(found.tokens_SK.numpy(), rest)
        return tokens_SK, np.pad(found.logprobs_SK.numpy(), rest)

    def _tree(self, batch: TrainingBatch) -> TokenTree:
        """Return the calls of the batch, in their order, with what the teacher knows in their contexts."""
        tree, known = TokenTree(), dict[int, Sequence[int]]()
        for call in batch.calls:
            key = id(call.trajectory)
            if key not in known:
                text = self._text(call.trajectory, call.group)
                known[key] = self._renderer.encode_text(text) if text else ()
            tree.insert(self._informed(call.record, call.trajectory.records[0].prompt_ids, known[key]))
        return tree

    def _informed(
        self, record: CompletionRecord, first: npt.NDArray[np.int64], known: Sequence[int]
    ) -> CompletionRecord:
        """Return a call with `known` at the end of the message that its rollout began with, if it can stand there."""
        prompt, ending = record.prompt_ids, self._ending
        size = prompt.size + len(known) + record.output_ids.size
        begins = np.array_equal(prompt[: first.size], first) and np.array_equal(
            first[first.size - len(ending) :], ending
        )
        if not known or not begins or size > self._context_length:
            return record
        at = first.size - len(ending)
        return replace(record, prompt_ids=np.concatenate([prompt[:at], np.array(known, np.int64), prompt[at:]]))

    def _text(self, trajectory: Trajectory, group: Group) -> str:
        """Return what the teacher knows about a rollout."""
        solutions = (one for one in group.trajectories if one is not trajectory and one.reward >= self._reward)
        solution = next(map(self._said, solutions), "")
        parts = [f"A correct solution is:\n{solution}"] if solution else []
        parts += [f"About an earlier attempt:\n{trajectory.feedback}"] if trajectory.feedback else []
        return "\n\n" + "\n\n".join([*parts, "Now solve the task."]) if parts else ""

    def _said(self, trajectory: Trajectory) -> str:
        """Return the text of a rollout after its first prompt."""
        first = trajectory.records[0].prompt_ids
        whole = max(
            (np.concatenate([record.prompt_ids, record.output_ids]) for record in trajectory.records),
            key=lambda ids: ids.size * bool(np.array_equal(ids[: first.size], first)),
        )
        return self._renderer.decoder(calls=True)(whole[first.size :].tolist()).strip()


def ending_of_a_message(renderer: ChatRenderer) -> list[int]:
    """Return the ids with which a prompt ends after the text of a user's message: what two that differ in it share."""
    one, other = (renderer.render([{"role": "user", "content": text}], None) for text in ("a", "b"))
    size = next((n for n, (x, y) in enumerate(zip(one[::-1], other[::-1], strict=False)) if x != y), 0)
    return one[len(one) - size :]
