"""The bridge from a trainer of transformers to the run: progress and metrics go to the loggers, weights to `epoch_N/`.

TRL's names of metrics become those that the rest of the project uses.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..files import give_usual_modes
from ..metrics import EVAL, MetricsLogger
from ..policy import ThreadCount


class TrainingProgress(TrainerCallback):  # type: ignore[misc]  # transformers has no types here
    """Follow one run.

    Args:
        logger: where progress and numbers go.
        tokens_per_epoch: ids in all training rows.
        save_epoch: writes the weights after the epoch of this number.
        asked: once it is set, training stops after its step, with a checkpoint.
        drop_older: deletes the checkpoints that are no longer needed; gets the path of the best one, if one is marked.
    """

    def __init__(
        self,
        logger: MetricsLogger,
        tokens_per_epoch: int,
        save_epoch: Callable[[int], None],
        asked: threading.Event,
        drop_older: Callable[[str | None], None],
    ) -> None:
        self._logger = logger
        self._asked = asked
        self.has_begun = False
        """True once a step of training has begun: a checkpoint that it goes on from has been read by then."""
        self._tokens_per_epoch = tokens_per_epoch
        self._save_epoch = save_epoch
        self._drop_older = drop_older
        self._training = False
        self._threads = ThreadCount()
        self._last = (0.0, 0.0)
        """Time at which numbers were logged last, and the epochs done by then."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._training = True
        self._last = (time.perf_counter(), float(state.epoch or 0.0))
        self._logger.phase("training", state.max_steps - state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._training = False

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.has_begun = True
        self._threads.adapt()

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._threads.adapt()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._logger.advance()
        control.should_log |= state.global_step >= state.max_steps  # the last numbers, however many steps there are
        if self._asked.is_set():
            self._logger.note("interrupted: writing a checkpoint")
            control.should_save = control.should_training_stop = True
            control.should_evaluate = False

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._threads.adapt()
        if not self._training:  # before and after training, measuring is a phase of its own
            self._logger.advance()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        found = trl_metrics(logs or {})
        if not self._training or not found:
            return
        if "loss" in found:
            now, epochs = time.perf_counter(), float(state.epoch)
            seconds, done = now - self._last[0], epochs - self._last[1]
            found["tokens_per_second"] = self._tokens_per_epoch * done / seconds if seconds > 0 else 0.0
            self._last = (now, epochs)
        self._logger.log(found, step=state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            give_usual_modes(Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
            self._drop_older(state.best_model_checkpoint)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._asked.is_set():  # its checkpoint is written, and to measure may take longer than there is
            control.should_evaluate = control.should_save = False
        epoch = round(state.epoch)
        if state.is_world_process_zero and epoch > 0 and abs(state.epoch - epoch) < 1e-6:
            self._save_epoch(epoch)


_FIRST = "reward/margin"
"""Logged first: it stands for the rewards of a method that trains on pairs."""
_NAMES = {
    "accuracy": "accuracy",
    "grad_norm": "gradient_norm",
    "kl": "kl",
    "logps/chosen": "logprob/chosen",
    "logps/rejected": "logprob/rejected",
    "margin": "reward/margin",
    "max_reward": "reward/max",
    "mean_reward": "reward/mean",
    "mean_token_accuracy": "accuracy/tokens",
    "min_reward": "reward/min",
    "rewards/accuracies": "accuracy",
    "rewards/chosen": "reward/chosen",
    "rewards/margins": "reward/margin",
    "rewards/rejected": "reward/rejected",
}
_LEFT_OUT = ("epoch", "model_preparation_time", "num_tokens", "runtime", "total_flos")
_HELD_OUT = "eval_"
_TOTALS = "train_"


def trl_metrics(logs: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of one row of TRL's log: those of held-out examples as `…/eval`, counters left out."""
    found: dict[str, float] = {}
    for name, value in logs.items():
        plain = name.removeprefix(_HELD_OUT)
        if plain in _LEFT_OUT or plain.endswith("_per_second") or name.startswith(_TOTALS):
            continue
        found[_NAMES.get(plain, plain) + (EVAL if name.startswith(_HELD_OUT) else "")] = float(value)
    return dict(sorted(found.items(), key=lambda item: not item[0].startswith(_FIRST)))


def held_out_metrics(logs: Mapping[str, float]) -> dict[str, float]:
    """Return what one evaluation measured: `loss`, `accuracy`, …"""
    return {name.removesuffix(EVAL): value for name, value in trl_metrics(logs).items() if name.endswith(EVAL)}
