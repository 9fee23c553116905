"""The update by TRL: takes groups, computes advantages, loss and steps by TRL, returns metrics. See `Objective`.

Differences from the native backend with the same rewards and settings: the standard deviation of a group is that of a
sample (divided by G - 1) plus 1e-4; rollouts without training data and groups of equal rewards count in the mean over
rollouts; log-probabilities come from padded rows, not from a tree; the first ratio is 1 by definition; steps are not
shortened (`max_update_kl`). Runs on the torch thread.
"""

from __future__ import annotations

import gc
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedTokenizerBase, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from datasets import Dataset

from ...algorithm.batch import with_kl_penalty, with_overlong_penalty
from ...algorithm.groups import Group, Trajectory, group_metrics, has_signal
from ...algorithm.settings import GRPOSettings
from ...algorithm.state import Objective
from ...algorithm.tasks import derive_seed
from ...errors import UserError
from ...logging import only_errors_of
from ...policy import DEFAULT_ADAPTER, Learner, LearnerSettings, PolicyModel, ThreadCount

_LOSS_TYPES = {"sequence": "grpo", "token": "dapo", "dr_grpo": "dr_grpo"}
"""TRL's name for each `loss_aggregation`."""


def trainer_options(settings: GRPOSettings, learner: LearnerSettings) -> dict[str, Any]:
    """Return the keywords of `trl.GRPOConfig` for the loss and the optimizer.

    A forward-backward pass takes one group, padded to its longest rollout; the gradients of a step's groups add up.
    """
    high = settings.clip_ratio if settings.clip_ratio_high is None else settings.clip_ratio_high
    return {
        "num_generations": settings.samples_per_prompt,
        "per_device_train_batch_size": settings.samples_per_prompt,
        "gradient_accumulation_steps": settings.tasks_per_step,
        "num_iterations": settings.epochs_per_batch,
        "max_steps": settings.epochs_per_batch,
        "max_completion_length": settings.max_trajectory_tokens,
        "temperature": settings.temperature,
        "loss_type": _LOSS_TYPES[settings.loss_aggregation],
        "epsilon": settings.clip_ratio,
        "epsilon_high": high,
        "beta": settings.kl_coef if settings.kl_in_loss else 0.0,
        "use_bias_correction_kl": False,  # differentiated as it is written
        "entropy_coef": settings.entropy_coef,
        "scale_rewards": "group" if settings.normalize_advantage else "none",
        "max_grad_norm": learner.max_grad_norm,
        "learning_rate": learner.learning_rate,
        "gradient_checkpointing": learner.checkpointing,
    }


# A rollout as a row of TRL: one prompt, one completion, and a mask of the sampled tokens.
#
#     prompt         of the first call
#     completion     its answer, the tool results or user messages (mask 0), the next answer, ... up to the last answer
#
# This works for rollouts whose calls continue each other token by token. A rewritten history or a second conversation
# would be several sequences, which TRL does not support.


@dataclass
class TRLRow:
    """One row of a batch of completions."""

    prompt_ids: list[int]
    completion_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    """[completion tokens] 1 for sampled tokens that are trained on."""
    logprobs: list[float] = field(default_factory=list)
    """[completion tokens] recorded log-probabilities; 0 where the mask is 0."""
    reward: float | None = None
    """None excludes the row from its group."""

    def add(self, ids: Sequence[int], mask: Sequence[int], logprobs: Sequence[float]) -> None:
        """Add tokens to the completion."""
        self.completion_ids.extend(ids)
        self.mask.extend(mask)
        self.logprobs.extend(logprobs)


def row_of(trajectory: Trajectory, temperature: float) -> TRLRow:
    """Return a trajectory as one row.

    Args:
        temperature: temperature of TRL's log-probabilities.
    """
    row = TRLRow(trajectory.records[0].prompt_ids.tolist(), reward=float(trajectory.values_C[0]))
    for number, (record, column) in enumerate(zip(trajectory.records, trajectory.column_R, strict=True)):
        if record.temperature != temperature:
            raise UserError(
                f"'trl' takes log-probabilities at the temperature {temperature:g}, but a call of rollout "
                f"{trajectory.rollout_id} was sampled at {record.temperature:g}: leave the temperature to the resource "
                "that the agent is given, or use `backend=native`",
                setting="backend",
            )
        prompt = record.prompt_ids.tolist()
        before = row.prompt_ids + row.completion_ids
        if prompt[: len(before)] != before:
            raise UserError(
                f"'trl' takes rollouts of one conversation, but call {number + 1} of rollout "
                f"{trajectory.rollout_id} does not continue the one before it: use `backend=native`, which trains any "
                "rollout, or (where a chat template rewrites the history) `thinking=keep`",
                setting="backend",
            )
        between = prompt[len(before) :]
        row.add(between, [0] * len(between), [0.0] * len(between))
        trained = np.ones(record.output_ids.size, np.bool_) if record.forced is None else ~record.forced
        trained = trained & (column >= 0)
        logprobs = np.where(trained, record.logprobs, 0.0)
        row.add(record.output_ids.tolist(), trained.astype(int).tolist(), logprobs.tolist())
    return row


class TRLObjective(Objective):
    """Trains one adapter or all weights with the native optimizer, so that the loop's checkpoints are complete."""

    def __init__(
        self,
        model: PolicyModel,
        learners: Mapping[str, Learner],
        tokenizer: PreTrainedTokenizerBase,
        settings: GRPOSettings,
    ) -> None:
        super().__init__(learners)
        self._model = model
        self._tokenizer = tokenizer
        self._settings = settings
        self._trainer: StepTrainer | None = None

    def has_signal(self, group: Group) -> bool:
        return has_signal(group.credits)

    def update(self, adapter: str, groups: Sequence[Group]) -> dict[str, float]:
        metrics = group_metrics(groups, self.has_signal)
        if not any(self.has_signal(group) for group in groups) and not self._settings.kl_in_loss:
            return metrics
        learner, settings = self.learners[adapter], self._settings
        if settings.overlong_buffer > 0:
            groups = with_overlong_penalty(
                groups, settings.max_new_tokens, settings.overlong_buffer, settings.overlong_penalty
            )
        if settings.kl_coef > 0 and settings.kl_in_reward:
            groups, metrics["kl"] = with_kl_penalty(groups, learner, settings.kl_coef)
        rows = self._rows(groups)
        metrics["learning_rate"] = learner.learning_rate(learner.steps)
        before = learner.steps
        with self._model.using(adapter), self._model.callable_by_others():
            if self._trainer is None:
                self._trainer = StepTrainer(self._model, learner, self._tokenizer, self._settings)
            metrics |= self._trainer.step(rows, derive_seed(self._settings.seed, "trl", learner.steps))
        self._model.versions[adapter] += learner.steps - before
        return metrics

    def _rows(self, groups: Sequence[Group]) -> list[TRLRow]:
        """Return the rows of all groups, each group padded to its full size."""
        settings, rows = self._settings, []
        pad = self._tokenizer.pad_token_id
        pad = self._tokenizer.eos_token_id if pad is None else pad
        for group in groups:
            for trajectory in group.trajectories:
                row = row_of(trajectory, settings.temperature)
                if settings.mask_truncated and trajectory.truncated:  # its reward still counts in the group's mean
                    size = len(row.completion_ids)
                    row = replace(row, mask=[0] * size, logprobs=[0.0] * size)
                rows.append(row)
            # TRL's groups have a fixed size: these stand for rollouts without training data.
            rows += [TRLRow([pad], [pad], [0], [0.0])] * (settings.samples_per_prompt - len(group.trajectories))
        return rows


# TRL's GRPOTrainer, run one step at a time.
#
# It trains the modules that the policy samples with, with the policy's optimizer and learning rates. Its data set has
# an empty row for each task of a step; the loop's rollouts come in through `rollout_func`. So the loop keeps the whole
# state of a checkpoint.


_REWARD = "rollout_reward"
_NAMES = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "entropy": "entropy",
    "kl": "kl",
    "clip_ratio/region_mean": "clip_fraction",
}
"""TRL's metrics and the equivalent ones of this package."""


class StepTrainer:
    """Use it on the torch thread, while the model is `callable_by_others`."""

    def __init__(
        self, model: PolicyModel, learner: Learner, tokenizer: PreTrainedTokenizerBase, settings: GRPOSettings
    ) -> None:
        """
        Args:
            learner: its optimizer takes the steps, which it counts.
            tokenizer: required by TRL, which decodes completions for reward functions.
        """
        self._rows: Sequence[TRLRow] = ()
        self._watch = _Watch(learner, model.threads)
        rate = learner.settings.learning_rate
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():  # TRL creates the folder
            warnings.filterwarnings("ignore", message=".*'rollout_func'.*experimental")
            warnings.simplefilter("ignore", FutureWarning)  # TRL's own use of transformers
            options = GRPOConfig(
                output_dir=folder,
                **trainer_options(settings, learner.settings),
                shuffle_dataset=False,
                use_cpu=model.device.type == "cpu",
                bf16=False,
                fp16=False,
                seed=settings.seed % 2**32,
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                dataloader_pin_memory=False,
            )
            self._trainer = GRPOTrainer(
                model.base if model.peft_model is None else model.peft_model,
                reward_funcs=_rewards,
                args=options,
                train_dataset=Dataset.from_dict({"prompt": [str(task) for task in range(settings.tasks_per_step)]}),
                processing_class=tokenizer,
                callbacks=[self._watch],
                optimizers=(
                    learner.optimizer,
                    LambdaLR(learner.optimizer, lambda _: learner.learning_rate(learner.steps) / rate),
                ),
                rollout_func=self._rollouts,
            )
        self._trainer.remove_callback(PrinterCallback)
        if model.peft_model is not None and "ref" in model.peft_model.peft_config:
            # TRL's reference is a copy of the adapter as it was at the start; ours is the model without an adapter,
            # which TRL takes where there is no such copy.
            model.peft_model.delete_adapter("ref")
            model.peft_model.set_adapter(DEFAULT_ADAPTER)

    def step(self, rows: Sequence[TRLRow], seed: int) -> dict[str, float]:
        """Take all optimizer steps on the rollouts of one step of the loop.

        Args:
            rows: `tasks_per_step` groups of `samples_per_prompt` rollouts.
            seed: seed of the order within a step and of dropout.
        """
        self._rows = rows
        self._watch.logs.clear()
        torch.manual_seed(seed)
        gc.freeze()  # `train` runs a garbage collection, which would scan all objects
        try:
            with only_errors_of("transformers"):
                self._trainer.train()
        finally:
            gc.unfreeze()
        self._trainer.optimizer.zero_grad(set_to_none=True)
        last = self._watch.logs[-1]
        return {_NAMES[name]: value for name, value in last.items() if name in _NAMES}

    def _rollouts(self, prompts: list[str], _: GRPOTrainer) -> dict[str, Any]:
        """TRL's `rollout_func`: return the rollouts of the loop."""
        if len(prompts) != len(self._rows):
            raise ValueError(f"{len(self._rows)} rollouts for the {len(prompts)} that TRL asks for")
        return {
            "prompt_ids": [row.prompt_ids for row in self._rows],
            "completion_ids": [row.completion_ids for row in self._rows],
            "logprobs": [row.logprobs for row in self._rows],
            "env_mask": [row.mask for row in self._rows],
            _REWARD: [row.reward for row in self._rows],
        }


class _Watch(TrainerCallback):  # type: ignore[misc]  # transformers has no types here
    """Counts the steps of the learner, keeps the logs, and adapts the number of threads."""

    def __init__(self, learner: Learner, threads: ThreadCount) -> None:
        self.logs: list[dict[str, float]] = []
        self._learner = learner
        self._threads = threads

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._threads.adapt()

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._threads.adapt()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._learner.steps += 1

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if logs is not None and "loss" in logs:
            self.logs.append(dict(logs))


def _rewards(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float | None]:
    """TRL's reward function: the rewards of hooks and agent, None for padding rows."""
    rewards: list[float | None] = columns[_REWARD]
    return rewards
