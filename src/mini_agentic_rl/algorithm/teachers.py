"""Teachers: the log-probabilities that a step's rollouts are compared with, token by token (on-policy distillation;
Agarwal et al. 2024, arXiv:2306.13649; Gu et al. 2024, arXiv:2306.08543).

    LocalTeacher        weights in this process: the bare model, an adapter, another model
    PrivilegedTeacher   the policy itself, with more in its context (SDPO)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import numpy.typing as npt

from ..gateway import ChatRenderer, ServedPolicy, load_tokenizer
from ..policy import Learner, PolicyError, PolicyModel, Scorer, adapter_folder, load_model
from ..tokens import CompletionRecord, TokenTree, pack
from .batch import TrainingBatch
from .groups import Group, Trajectory
from .losses import Floats, Ints
from .settings import BASE_TEACHER, SELF_TEACHER, GRPOSettings

if TYPE_CHECKING:
    pass

ADAPTER: Final = "teacher"
"""Name that the folder of an adapter gets beside the policy's own."""


class Teacher(Protocol):
    """Scores sampled tokens. Runs on the torch thread."""

    def logprobs(self, batch: TrainingBatch) -> Floats:
        """Return the log-probability [S] of each sampled token; at imitated terms any finite number."""

    def likeliest(self, batch: TrainingBatch, count: int) -> tuple[Ints | None, npt.NDArray[np.float32]]:
        """Return the `count` most likely tokens [S, K] in each state and their log-probabilities [S, K]; a count of 0
        means the whole vocabulary, without tokens."""


class LocalTeacher:
    """A teacher whose weights are in this process. It computes the packed tree that the policy learns from."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer

    def logprobs(self, batch: TrainingBatch) -> Floats:
        logprobs_S: Floats = self._scorer.logprobs(batch.packed).double().cpu().numpy()
        return logprobs_S

    def likeliest(self, batch: TrainingBatch, count: int) -> tuple[Ints | None, npt.NDArray[np.float32]]:
        top = self._scorer.likeliest(batch.packed, count)
        return None if top.tokens_SK is None else top.tokens_SK.numpy(), top.logprobs_SK.numpy()


class PrivilegedTeacher:
    """The policy as its own teacher, with a solution and feedback in its context (SDPO; Huebotter et al. 2026,
    arXiv:2601.20802, "Reinforcement learning via self-distillation").

        pi_T(token | state) = pi(token | task, solution and feedback, the rollout so far)

    The weights are those of the policy before the step; the paper takes a moving mean of them. A solution is the text
    of another rollout of the group that earned `teacher_reward` or more; feedback is what the agent, or a hook,
    recorded about the rollout as the annotation `feedback`. Both are put, as text, at the end of the message that the
    rollout began with; the rest of the rollout stays the same token by token. A rollout without either is its own
    teacher, from which nothing is learnt.
    """

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
        top = self._scorer.likeliest(pack([self._tree(batch)]), count)
        # Imitated terms weigh nothing in the divergence; any finite number will do.
        rest = ((0, batch.packed.term_count - batch.sampled_terms), (0, 0))
        tokens_SK = None if top.tokens_SK is None else np.pad(top.tokens_SK.numpy(), rest)
        return tokens_SK, np.pad(top.logprobs_SK.numpy(), rest)

    def _tree(self, batch: TrainingBatch) -> TokenTree:
        """Return the calls of the batch, in their order, with the teacher's knowledge in their contexts."""
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
        """Return a call with the tokens `known` at the end of its rollout's first message, if they fit there."""
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
        """Return the teacher's knowledge about a rollout: a solution, and feedback."""
        solutions = (other for other in group.trajectories if other is not trajectory and other.reward >= self._reward)
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
    """Return the ids of a prompt after the text of a user's message: the common ending of two prompts."""
    one, other = (renderer.render([{"role": "user", "content": text}], None) for text in ("a", "b"))
    size = next((n for n, (x, y) in enumerate(zip(one[::-1], other[::-1], strict=False)) if x != y), 0)
    return one[len(one) - size :]


def teacher_adapter(settings: GRPOSettings, *, known: Mapping[str, object]) -> dict[str, Path]:
    """Return the adapter to load beside the policy's as its teacher, by its name; empty without one.

    Args:
        known: the adapters that the policy has already, by name.
    """
    teacher = settings.teacher
    if teacher is None or teacher in (BASE_TEACHER, SELF_TEACHER) or teacher in known:
        return {}
    folder = adapter_folder(teacher)
    return {} if folder is None else {ADAPTER: folder}


def make_teachers(settings: GRPOSettings, served: ServedPolicy, learners: Mapping[str, Learner]) -> dict[str, Teacher]:
    """Return the teacher of each adapter; empty where the settings ask for none.

    Raises:
        PolicyError: the teacher cannot be loaded, or has another tokenizer.
    """
    teacher, model = settings.teacher, served.policy.model
    if teacher is None:
        return {}
    if teacher == SELF_TEACHER:
        if served.server is None:
            raise RuntimeError("the policy is not served")
        renderer = served.server.renderer
        return {
            adapter: PrivilegedTeacher(
                learner.scorer(adapter),
                renderer,
                reward=settings.teacher_reward,
                context_length=model.context_length,
            )
            for adapter, learner in learners.items()
        }
    name = None if teacher == BASE_TEACHER else ADAPTER if ADAPTER in model.versions else teacher
    if name is None or name in model.versions:
        return {adapter: LocalTeacher(learner.scorer(name)) for adapter, learner in learners.items()}
    other = _other_model(teacher, served)
    return {
        adapter: LocalTeacher(
            Scorer(
                other,
                other.adapters[0],
                max_tokens=learner.settings.max_batch_tokens,
                head_rows=learner.settings.head_rows,
            )
        )
        for adapter, learner in learners.items()
    }


def _other_model(teacher: str, served: ServedPolicy) -> PolicyModel:
    """Return another model, in the number format and on the device of the policy's."""
    own, theirs = served.tokenizer, load_tokenizer(teacher)
    if own.get_vocab() != theirs.get_vocab():
        raise PolicyError(
            f"{teacher} has another tokenizer than {served.name}: no token is compared", setting="teacher"
        )
    where = served.policy.model
    model = load_model(teacher, device=str(where.device))
    model.base.to(where.dtype).requires_grad_(False)
    return model
