"""The folder of a post-training run, and the callback that logs progress and metrics and saves epochs.

    adapter_config.json  adapter_model.safetensors  tokenizer…     the files that `model=FOLDER` loads
    epoch_N/                                                       the same after each epoch
    run.json  metrics.jsonl  summary.json  checkpoints/checkpoint-N/

A finished run's folder is itself the adapter or model. The configuration is `run.json`, because `config.json` is the
model's. transformers writes the checkpoints; one is complete when its last file exists, so a run killed while writing
continues from the one before.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..errors import UserError
from ..files import give_usual_modes, reading
from ..metrics import EVAL, MetricsLogger
from ..policy import ADAPTER_CONFIG, ThreadCount
from ..trainer import RunFolder, RunState
from .models import RUN_FILE

STATE_FILE = "trainer_state.json"
"""Progress of a run; the last file of a checkpoint to be written."""
_KEPT = 2
"""Checkpoints that stay, beside the best."""
_RESULT_FILES = "result.json"
"""Lists the files of the result, so that `overwrite` deletes those and nothing else."""


class PostTrainingFolder(RunFolder):
    """The files of a post-training run; each is written completely or not at all."""

    checkpoint_name = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-([0-9]{{1,15}})")

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self.config_path = self.path / RUN_FILE

    def begin(self, config: Mapping[str, Any], **options: Any) -> RunState:
        state = super().begin(config, **options)
        for _, checkpoint in self.checkpoint_folders():
            if not self.is_whole(checkpoint):  # a killed process was writing or deleting it
                shutil.rmtree(checkpoint)
        return state

    def checkpoint_path(self, step: int) -> Path:
        return self.checkpoints_path / f"{PREFIX_CHECKPOINT_DIR}-{step}"

    def refuse_model(self, model: str) -> None:
        """Refuse to train into a folder that holds a model.

        Raises:
            UserError: the folder is the model itself, or holds one that no run wrote.
        """
        holds_model = any((self.path / name).exists() for name in (ADAPTER_CONFIG, "config.json"))
        if Path(model).expanduser().resolve() == self.path.resolve() or (holds_model and not self.config_path.exists()):
            raise UserError(
                f"{self.path} holds a model, or a run of another kind: choose another folder", setting="output_dir"
            )

    def is_whole(self, checkpoint: Path) -> bool:
        """Return True if the last file of a checkpoint was written."""
        try:
            return bool(json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return False

    def drop_older_checkpoints(self, best: str | None) -> None:
        """Delete all checkpoints but the last two and the one at `best`.

        transformers' `save_total_limit` would also delete the user's folders whose names begin with `checkpoint-`.
        """
        for _, folder in sorted(self.checkpoint_folders())[:-_KEPT]:
            if best is None or folder.resolve() != Path(best).resolve():
                shutil.rmtree(folder)

    def save_trained(self, write: Callable[[Path], None]) -> None:
        """Write the result into the folder itself; an adapter's configuration last, as it makes the adapter loadable.

        Raises:
            UserError: the disk is full; what was there before is untouched.
        """
        written = self.path / ".result"
        self.write_whole(written, write)
        names = sorted((path.name for path in written.iterdir()), key=lambda name: (name == ADAPTER_CONFIG, name))
        (self.checkpoints_path / _RESULT_FILES).write_text(json.dumps(names), encoding="utf-8")
        for name in names:
            os.replace(written / name, self.path / name)
        written.rmdir()

    def results(self) -> list[Path]:
        files = self.checkpoints_path / _RESULT_FILES
        names: list[str] = []
        if files.is_file():
            with reading(files, setting="output_dir"):
                names = [str(name) for name in json.loads(files.read_text(encoding="utf-8"))]
                if any(Path(name).name != name for name in names):
                    raise ValueError("it names files that are not in the folder")
        return [*(self.path / name for name in names), *self.epochs()]

    def owned(self) -> list[Path]:
        files = [self.config_path, self.summary_path, self.metrics_path, self.checkpoints_path / _RESULT_FILES]
        return [*self.results(), *files, self.checkpoints_path]


class TrainingProgress(TrainerCallback):  # type: ignore[misc]  # transformers has no types here
    """Logs progress and metrics, saves epochs, and stops when asked.

    Args:
        logger: receives progress and metrics.
        tokens_per_epoch: tokens in all training rows.
        save_epoch: saves the weights after the epoch of this number.
        stop: once it is set, training stops after its step, with a checkpoint.
        drop_older: deletes older checkpoints; gets the path of the best one, if there is one.
    """

    def __init__(
        self,
        logger: MetricsLogger,
        tokens_per_epoch: int,
        save_epoch: Callable[[int], None],
        stop: threading.Event,
        drop_older: Callable[[str | None], None],
    ) -> None:
        self._logger = logger
        self._stop = stop
        self.has_begun = False
        """True once a training step has begun, and so the checkpoint that it resumes from was read."""
        self._tokens_per_epoch = tokens_per_epoch
        self._save_epoch = save_epoch
        self._drop_older = drop_older
        self._training = False
        self._threads = ThreadCount()
        self._last_log = (0.0, 0.0)
        """Time of the last row of metrics, and the epochs done by then."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._training = True
        self._last_log = (time.perf_counter(), float(state.epoch or 0.0))
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
        control.should_log |= state.global_step >= state.max_steps  # log the last step, whatever `logging_steps` is
        if self._stop.is_set():
            self._logger.note("interrupted: writing a checkpoint")
            control.should_save = control.should_training_stop = True
            control.should_evaluate = False

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._threads.adapt()
        if not self._training:  # before and after training, evaluation is a phase of its own
            self._logger.advance()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        metrics = trl_metrics(logs or {})
        if not self._training or not metrics:
            return
        if "loss" in metrics:
            now, epochs = time.perf_counter(), float(state.epoch)
            seconds, done = now - self._last_log[0], epochs - self._last_log[1]
            metrics["tokens_per_second"] = self._tokens_per_epoch * done / seconds if seconds > 0 else 0.0
            self._last_log = (now, epochs)
        self._logger.log(metrics, step=state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            give_usual_modes(Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
            self._drop_older(state.best_model_checkpoint)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._stop.is_set():  # its checkpoint is written, and an evaluation may take longer than there is time
            control.should_evaluate = control.should_save = False
        epoch = round(state.epoch)
        if state.is_world_process_zero and epoch > 0 and abs(state.epoch - epoch) < 1e-6:
            self._save_epoch(epoch)


_FIRST = "reward/margin"
"""Logged first: the metric to watch where pairs are trained."""
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


def trl_metrics(logs: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of one row of TRL's log under our names, those of an evaluation as `…/eval`; no counters."""
    metrics: dict[str, float] = {}
    for name, value in logs.items():
        plain = name.removeprefix("eval_")
        if plain in _LEFT_OUT or plain.endswith("_per_second") or name.startswith("train_"):
            continue
        metrics[_NAMES.get(plain, plain) + (EVAL if name.startswith("eval_") else "")] = float(value)
    return dict(sorted(metrics.items(), key=lambda item: not item[0].startswith(_FIRST)))


def held_out_metrics(logs: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of one evaluation: `loss`, `accuracy`, …"""
    return {name.removesuffix(EVAL): value for name, value in trl_metrics(logs).items() if name.endswith(EVAL)}
