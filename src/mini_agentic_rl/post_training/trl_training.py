"""A run of a trainer of TRL. TRL reports to no service and shows no progress bars."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeAlias

from accelerate import PartialState
from transformers import EarlyStoppingCallback, PrinterCallback, ProgressCallback, TrainerCallback, set_seed
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from datasets import Dataset

from ..datasets import Form
from ..errors import MissingPackageError, UserError
from ..files import give_usual_modes
from ..gateway import ChatRenderer
from ..metrics import EVAL
from ..policy import ThreadCount, count_parameters
from ..processes import deferred_interrupt
from ..trainer import RecordedRun
from .models import TrainedModel, load_causal, save_trained, write_no_cards
from .rows import Example, TokenRows
from .run import PostTrainingFolder, Rows, RunData, S, damaged_checkpoint, run_training
from .settings import PostTrainingSettings

TrlParts: TypeAlias = tuple[Any, Any, Mapping[str, Any]]
"""A trainer class of TRL, the class of its configuration, and further arguments of the configuration."""


@dataclass(frozen=True)
class Method(Generic[S]):
    """One method of post-training."""

    name: str
    form: Form
    """Form of its examples; see `load_examples`."""
    tokenise: Callable[[ChatRenderer, Sequence[Example], S], TokenRows]
    """Turns examples into rows of token ids."""
    parts: Callable[[S], TrlParts]
    """Returns its trainer; imports TRL."""
    load: Callable[[S], TrainedModel] = load_causal
    """Loads the model with its head."""
    result: Callable[[Any, int], dict[str, Any]] = lambda trainer, rows: {}
    """Returns further entries of the summary, given the trainer and the number of rows it was last evaluated on."""


def run_method(method: Method[S], settings: S, train_rows: Rows, eval_rows: Rows) -> dict[str, Any]:
    """Run the method and return its summary; arguments and errors as `run_training`.

    Raises:
        MissingPackageError: TRL is not installed.
    """
    if importlib.util.find_spec("trl") is None:
        raise MissingPackageError("training on written rows", "trl", extra="trl")

    def start(run: RecordedRun, folder: PostTrainingFolder, data: RunData, processes: PartialState) -> TrlTraining:
        return TrlTraining(method, settings, run, folder, data)

    return run_training(method.name, method.form, settings, method.tokenise, start, train_rows, eval_rows)


class TrlTraining:
    """A trainer of TRL as a `Training`."""

    def __init__(
        self, method: Method[S], settings: S, run: RecordedRun, folder: PostTrainingFolder, data: RunData
    ) -> None:
        self._method: Method[Any] = method
        self._run = run
        self._evaluated = len(data.evaluated)
        loaded = method.load(settings)
        arguments = _training_arguments(settings, folder.checkpoints_path, loaded, evaluates=data.has_held_out)
        trainer_class, configuration, options = method.parts(settings)
        set_seed(settings.seed)  # TRL 1.14 draws a new adapter before it sets the seed
        self._trainer = trainer_class(
            model=loaded.model,
            args=configuration(**{**arguments, **options}),
            train_dataset=Dataset.from_list(data.rows.rows),
            eval_dataset=Dataset.from_list(data.evaluated),
            processing_class=loaded.tokenizer,
            peft_config=loaded.new_adapter,
        )
        write_no_cards(self._trainer)
        self.parameters = count_parameters(self._trainer.model)
        for default in (PrinterCallback, ProgressCallback):
            self._trainer.remove_callback(default)
        self._progress = TrainingProgress(self, run, folder, data.rows.tokens)
        self._trainer.add_callback(self._progress)
        self._patience = settings.early_stopping_patience
        self.step = 0
        self.epochs = 0.0
        self.last_evaluation: dict[str, float] | None = None

    def evaluate(self, phase: str) -> dict[str, float]:
        self._run.logger.phase(phase, len(self._trainer.get_eval_dataloader()))
        return held_out_metrics(self._trainer.evaluate())

    def run(self) -> None:
        trainer, checkpoint = self._trainer, self._run.checkpoint
        if self._patience is not None:
            trainer.add_callback(EarlyStoppingCallback(self._patience))
        with deferred_interrupt(self._progress.stop):
            try:
                trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint[1]))
            except Exception as error:  # of pickles, archives and tensors, while a checkpoint is read
                if checkpoint is None or self._progress.has_begun or isinstance(error, UserError):
                    raise
                raise damaged_checkpoint(checkpoint[1], error) from error
        self.step, self.epochs = trainer.state.global_step, float(trainer.state.epoch)
        evaluations = [row for row in trainer.state.log_history if row["step"] == self.step and "eval_loss" in row]
        trained_here = checkpoint is None or checkpoint[0] != self.step
        if evaluations and trained_here and self._patience is None:  # else of other weights
            self.last_evaluation = held_out_metrics(evaluations[-1])

    def save_model(self, path: Path) -> None:
        save_trained(self._trainer.accelerator.unwrap_model(self._trainer.model), self._trainer.processing_class, path)

    def result(self) -> dict[str, Any]:
        return self._method.result(self._trainer, self._evaluated)


def _training_arguments(
    settings: PostTrainingSettings, checkpoints: Path, loaded: TrainedModel, *, evaluates: bool
) -> dict[str, Any]:
    """Return the arguments that all of TRL's configurations share."""
    dtype = str(loaded.dtype).removeprefix("torch.")
    mixed = loaded.device.type == "cuda" or not settings.use_lora  # frozen weights are in the device's dtype already
    stops_early = settings.early_stopping_patience is not None
    checkpoint_every = settings.eval_every if stops_early else settings.checkpoint_every
    return {
        "output_dir": str(checkpoints),
        "num_train_epochs": settings.num_epochs,
        "max_steps": -1 if settings.max_steps is None else settings.max_steps,
        "per_device_train_batch_size": settings.batch_size,
        "per_device_eval_batch_size": settings.batch_size,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        "gradient_checkpointing": settings.gradient_checkpointing,
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": settings.lr_schedule,
        "warmup_steps": settings.warmup_steps,
        "weight_decay": settings.weight_decay,
        "bf16": mixed and dtype == "bfloat16",
        "fp16": mixed and dtype == "float16",
        "use_cpu": loaded.device.type == "cpu",
        "dataloader_pin_memory": loaded.device.type == "cuda",
        "eval_strategy": "no" if not evaluates else "epoch" if settings.eval_every is None else "steps",
        "eval_steps": settings.eval_every,
        "save_strategy": "epoch" if checkpoint_every is None else "steps",
        "save_steps": checkpoint_every or 1,
        "load_best_model_at_end": stops_early,
        "metric_for_best_model": "eval_loss" if stops_early else None,
        "logging_steps": settings.logging_steps,
        "logging_first_step": True,
        "report_to": "none",
        "disable_tqdm": True,
        "seed": settings.seed,
    }


class TrainingProgress(TrainerCallback):  # type: ignore[misc]  # transformers has no types here
    """Logs progress and metrics, saves epochs, and stops at an interruption."""

    def __init__(self, training: TrlTraining, run: RecordedRun, folder: PostTrainingFolder, tokens: int) -> None:
        """`tokens` is the number of tokens in all training rows."""
        self._training = training
        self._logger = run.logger
        self._folder = folder
        self._tokens_per_epoch = tokens
        self.stop = threading.Event()
        """Once it is set, the training stops after its step, with a checkpoint."""
        self.has_begun = False
        """True once a training step has begun, and so the checkpoint that it resumes from was read."""
        self._is_training = False
        self._threads = ThreadCount()
        self._last_log = (0.0, 0.0)
        """Time of the last row of metrics, and the epochs done by then."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._is_training = True
        self._last_log = (time.perf_counter(), float(state.epoch or 0.0))
        self._logger.phase("training", state.max_steps - state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._is_training = False

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.has_begun = True
        self._threads.adapt()

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._threads.adapt()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._logger.advance()
        control.should_log |= state.global_step >= state.max_steps  # log the last step, whatever `logging_steps` is
        if self.stop.is_set():
            self._logger.note("interrupted: writing a checkpoint")
            control.should_save = control.should_training_stop = True
            control.should_evaluate = False

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._threads.adapt()
        if not self._is_training:  # before and after training, evaluation is a phase of its own
            self._logger.advance()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        metrics = trl_metrics(logs or {})
        if not self._is_training or not metrics:
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
            self._folder.drop_older_checkpoints(state.best_model_checkpoint)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.stop.is_set():  # its checkpoint is written, and an evaluation may take longer than there is time
            control.should_evaluate = control.should_save = False
        epoch = round(state.epoch)
        if state.is_world_process_zero and epoch > 0 and abs(state.epoch - epoch) < 1e-6:
            self._folder.save_epoch(epoch, self._training.save_model)


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
