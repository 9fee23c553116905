"""The update by TRL: groups in, TRL's advantages, loss and steps, metrics out. See `Objective`.

What is different from the native backend, rewards and settings being the same: the standard deviation of a group is
that of a sample (divided by G - 1), with 1e-4 added; rollouts that gave nothing to train on, and groups of equal
rewards, count in the mean over rollouts; log-probabilities are computed from padded rows and not from a tree, the first
ratio is 1 by definition, and no step is shortened (`max_update_kl`). Runs on the torch thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from ....algorithm.loop.groups import Group, group_metrics, has_signal
from ....algorithm.loop.objective import Learners, SeenCall, with_kl_penalty, with_overlong_penalty
from ....algorithm.seeds import derive_seed
from ....algorithm.settings import GRPOSettings
from ....policy import Learner, PolicyModel
from .rows import TRLRow, empty_row, masked, row_of

if TYPE_CHECKING:
    from .step_trainer import StepTrainer


class TRLObjective:
    """Learns one adapter, or all weights. The native optimizer takes the steps, so the loop's checkpoints are whole."""

    def __init__(
        self, model: PolicyModel, learners: Learners, tokenizer: PreTrainedTokenizerBase, settings: GRPOSettings
    ) -> None:
        self.learners = learners
        self._model = model
        self._tokenizer = tokenizer
        self._settings = settings
        self._trainer: StepTrainer | None = None

    def has_signal(self, group: Group) -> bool:
        return has_signal(group.credits)

    def update(self, adapter: str, groups: Sequence[Group]) -> dict[str, float]:
        metrics = group_metrics(groups)
        if not any(self.has_signal(group) for group in groups) and not self._settings.kl_in_loss:
            return metrics
        learner = self.learners[adapter]
        shaped, kl = self._shaped(groups, learner)
        rows = self._rows(shaped)
        metrics |= kl | {"learning_rate": learner.learning_rate(learner.steps)}
        before = learner.steps
        with self._model.using(adapter), self._model.callable_by_others():
            if self._trainer is None:
                from .step_trainer import StepTrainer

                self._trainer = StepTrainer(self._model, learner, self._tokenizer, self._settings)
            metrics |= self._trainer.step(rows, derive_seed(self._settings.seed, "trl", learner.steps))
        self._model.versions[adapter] += learner.steps - before
        return metrics

    def take_seen(self) -> Sequence[SeenCall]:
        return ()

    def save_state(self, folder: Path) -> None:
        """Do nothing: all is in the optimizer."""

    def load_state(self, folder: Path) -> None:
        """Do nothing: all is in the optimizer."""

    def _shaped(self, groups: Sequence[Group], learner: Learner) -> tuple[Sequence[Group], dict[str, float]]:
        settings = self._settings
        kl: dict[str, float] = {}
        if settings.overlong_buffer > 0:
            groups = with_overlong_penalty(
                groups, settings.max_new_tokens, settings.overlong_buffer, settings.overlong_penalty
            )
        if settings.kl_coef > 0 and settings.kl_in_reward:
            groups, kl["kl"] = with_kl_penalty(groups, learner, settings.kl_coef)
        return groups, kl

    def _rows(self, groups: Sequence[Group]) -> list[TRLRow]:
        """Return the rows group by group, each filled up to its size."""
        settings, rows = self._settings, []
        pad = self._tokenizer.pad_token_id
        filling = empty_row(self._tokenizer.eos_token_id if pad is None else pad)
        for group in groups:
            trained = [row_of(t, settings.temperature) for t in group.trajectories]
            if settings.mask_truncated:
                pairs = zip(trained, group.trajectories, strict=True)
                trained = [masked(row) if trajectory.truncated else row for row, trajectory in pairs]
            rows += trained + [filling] * (settings.samples_per_prompt - len(trained))
        return rows
