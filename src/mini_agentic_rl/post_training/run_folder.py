"""The folder of a post-training run, and the callback that logs progress and metrics and saves epochs.

    adapter_config.json  adapter_model.safetensors  tokenizer…     what `model=FOLDER` loads
    epoch_N/                                                       the same after each epoch
    run.json  metrics.jsonl  summary.json  checkpoints/checkpoint-N/

When the run is finished, the folder is itself the adapter or model. The configuration is `run.json`, because
`config.json` is the model's. transformers writes the checkpoints; one is complete when its last file exists, so a run
killed while writing continues from the one before.
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

_LAST_WRITTEN = "trainer_state.json"
_KEPT = 2
"""Checkpoints that stay, beside the best."""
_RESULT = "result"
_RESULT_FILES = "result.json"
"""Names of the result's files, so that `overwrite` deletes those and nothing else."""


class PostTrainingFolder(RunFolder):
    """Keep the files of a run of post-training; each is written whole or not at all."""

    checkpoint_name = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-([0-9]{{1,15}})")

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self.config_path = self.path / RUN_FILE

    def begin(self, config: Mapping[str, Any], **options: Any) -> RunState:
        state = super().begin(config, **options)
        self.remove_torn_checkpoints()
        return state

    def refuse_model(self, model: str) -> None:
        """Keep a model from being replaced by what is trained from it.

        Raises:
            UserError: the folder is the model itself, or holds one that no run wrote.
        """
        holds_model = any((self.path / name).exists() for name in (ADAPTER_CONFIG, "config.json"))
        if Path(model).expanduser().resolve() == self.path.resolve() or (holds_model and not self.config_path.exists()):
            raise UserError(
                f"{self.path} holds a model, or a run of another kind: choose another folder", setting="output_dir"
            )

    def is_whole(self, checkpoint: Path) -> bool:
        """Return whether a checkpoint is finished: its last file is there."""
        try:
            return bool(json.loads((checkpoint / _LAST_WRITTEN).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return False

    def remove_torn_checkpoints(self) -> None:
        """Clear away the checkpoints that a killed process was writing or deleting."""
        for _, folder in self.checkpoint_folders():
            if not self.is_whole(folder):
                shutil.rmtree(folder)

    def drop_older_checkpoints(self, best: str | None) -> None:
        """Delete all checkpoints but the last two and the one at `best`. Not left to transformers, whose
        `save_total_limit` also deletes folders of other names that begin with `checkpoint-`."""
        for _, folder in sorted(self.checkpoint_folders())[:-_KEPT]:
            if best is None or folder.resolve() != Path(best).resolve():
                shutil.rmtree(folder)

    def save_trained(self, write: Callable[[Path], None]) -> None:
        """Write the result into the folder itself: whole, or not there. An adapter's configuration comes last.

        Raises:
            UserError: the disk is full; what was there before is untouched.
        """
        written = self.path / f".{_RESULT}"
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
