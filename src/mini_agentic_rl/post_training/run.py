"""One run of any method: examples, model, measurement, training, measurement, result.

    read examples -> to tokens -> load -> measure -> [steps, epoch_N/, checkpoints]* -> measure -> write

A killed run continues from its last complete checkpoint with the same order of examples, optimizer and random state.
Started by `torchrun` or `accelerate launch`, each process trains on its share and the first one writes. TRL reports to
no service and shows no progress bars.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from huggingface_hub import constants
from transformers import EarlyStoppingCallback, PrinterCallback, ProgressCallback, TrainerCallback, set_seed

import datasets
from datasets import Dataset

from ..datasets import divide_examples, load_examples, records_of
from ..errors import MissingPackageError, UserError
from ..files import DamagedFileError, damage
from ..gateway import ChatRenderer, load_tokenizer
from ..logging import ignore_library_notices, only_errors_of
from ..metrics import EVAL, MetricsLogger, check_loggers, rows_until
from ..policy import count_parameters, resolve_device
from ..processes import deferred_interrupt, peak_memory_bytes
from ..trainer import RecordedRun, RunState, record_run
from .head_tiles import answers_in_tiles
from .models import TrainedModel, load_causal, save_trained, write_no_cards
from .rows import Example, TokenRows, report_losses
from .run_folder import PostTrainingFolder, TrainingProgress, held_out_metrics
from .settings import PostTrainingSettings

logger = logging.getLogger(__name__)

Rows: TypeAlias = Sequence[Example] | None
"""Examples given by hand; None where they are to be read."""
Callbacks: TypeAlias = Sequence[TrainerCallback]

S = TypeVar("S", bound=PostTrainingSettings)


TrlParts: TypeAlias = tuple[Any, Any, Mapping[str, Any]]
"""A trainer class of TRL, the class of its configuration, and the arguments of the configuration that a method adds."""


@dataclass(frozen=True)
class Method(Generic[S]):
    """One method of post-training."""

    name: str
    form: str
    """The form of its examples; see `load_examples`."""
    tokenise: Callable[[ChatRenderer, Sequence[Example], S], TokenRows]
    """Turns examples into rows of token ids."""
    parts: Callable[[S], TrlParts]
    """Returns its trainer; imports TRL."""
    load: Callable[[S], TrainedModel] = load_causal
    """Loads the model with its head."""
    result: Callable[[Any, int], dict[str, Any]] = lambda trainer, measured: {}
    """Returns further entries of the summary, from the trainer after its last evaluation on so many rows."""


def training_arguments(
    settings: PostTrainingSettings, checkpoints: Path, loaded: TrainedModel, *, evaluates: bool
) -> dict[str, Any]:
    """Return what all of TRL's configurations share.

    Mixed precision is on only where it has something to do: frozen weights are in the device's type already.
    """
    half = str(loaded.dtype).removeprefix("torch.")
    mixed = loaded.device.type == "cuda" or not settings.use_lora
    measuring = "no" if not evaluates else "epoch" if settings.eval_every is None else "steps"
    stops_early = settings.early_stopping_patience is not None
    every = settings.eval_every if stops_early else settings.checkpoint_every
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
        "bf16": mixed and half == "bfloat16",
        "fp16": mixed and half == "float16",
        "use_cpu": loaded.device.type == "cpu",
        "dataloader_pin_memory": loaded.device.type == "cuda",
        "eval_strategy": measuring,
        "eval_steps": settings.eval_every,
        "save_strategy": "epoch" if every is None else "steps",
        "save_steps": every or 1,
        "load_best_model_at_end": stops_early,
        "metric_for_best_model": "eval_loss" if stops_early else None,
        "logging_steps": settings.logging_steps,
        "logging_first_step": True,
        "report_to": "none",
        "disable_tqdm": True,
        "seed": settings.seed,
    }


def require_trl() -> None:
    """Check that TRL is there.

    Raises:
        MissingPackageError: it is not installed.
    """
    if importlib.util.find_spec("trl") is None:
        raise MissingPackageError("training on written rows", "trl", extra="trl")


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silence libraries for the duration of a block: TRL sends no usage report to the Hub, data sets show no progress
    bars, and no library logs which names or special tokens it changes."""
    reported, shown = constants.HF_HUB_DISABLE_TELEMETRY, not datasets.are_progress_bars_disabled()
    constants.HF_HUB_DISABLE_TELEMETRY = True
    datasets.disable_progress_bars()
    try:
        with warnings.catch_warnings(), only_errors_of("transformers"):
            ignore_library_notices()
            yield
    finally:
        constants.HF_HUB_DISABLE_TELEMETRY = reported
        if shown:
            datasets.enable_progress_bars()


_MEASURED_WITHOUT_HELD_OUT = 64
_PACKAGES = ("mini-agentic-rl", "torch", "transformers", "peft", "trl")


def run_method(
    method: Method[S], settings: S, train_rows: Rows, eval_rows: Rows, callbacks: Callbacks
) -> dict[str, Any]:
    """Run the method and return its summary.

    Args:
        settings: of the method.
        train_rows: examples in the method's form; None reads `settings.dataset`.
        eval_rows: held-out examples; None holds some of the others out.
        callbacks: further callbacks for the trainer of transformers.

    Raises:
        UserError: a setting cannot work, or the output folder holds something else.
    """
    require_trl()
    check_loggers(settings.loggers)
    with quiet_libraries():
        return _run(method, settings, train_rows, eval_rows, callbacks)


def _run(method: Method[S], settings: S, train_rows: Rows, eval_rows: Rows, callbacks: Callbacks) -> dict[str, Any]:
    started = time.perf_counter()
    device = resolve_device(settings.device)
    folder = PostTrainingFolder(settings.output_dir)
    folder.refuse_model(settings.model)
    renderer = ChatRenderer(load_tokenizer(settings.model))
    train, held_out = read_examples(settings, method.form, train_rows, eval_rows)
    rows, measured_rows = method.tokenise(renderer, train, settings), method.tokenise(renderer, held_out, settings)
    report_losses(rows)
    processes = PartialState(cpu=device.type == "cpu")
    has_held_out = bool(measured_rows.rows)
    if not has_held_out:
        measured_rows = TokenRows(rows.rows[:_MEASURED_WITHOUT_HELD_OUT])

    def load_and_train(run: RecordedRun) -> dict[str, Any]:
        run.logger.phase("loading the model")
        loaded = method.load(settings)
        with answers_in_tiles(loaded.device, loaded.model.config.get_text_config().hidden_size):
            return train_and_measure(run, loaded)

    def train_and_measure(run: RecordedRun, loaded: TrainedModel) -> dict[str, Any]:
        out = run.logger
        arguments = training_arguments(settings, folder.checkpoints_path, loaded, evaluates=has_held_out)
        trainer_class, configuration, options = method.parts(settings)
        set_seed(settings.seed)  # TRL 1.14 draws a new adapter before it sets the seed
        trainer = trainer_class(
            model=loaded.model,
            args=configuration(**{**arguments, **options}),
            train_dataset=Dataset.from_list(rows.rows),
            eval_dataset=Dataset.from_list(measured_rows.rows),
            processing_class=loaded.tokenizer,
            peft_config=loaded.new_adapter,
        )
        write_no_cards(trainer)
        parameters = count_parameters(trainer.model)
        out.note(str(parameters))
        for default in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(default)
        asked = threading.Event()
        progress = TrainingProgress(
            out,
            rows.tokens,
            lambda epoch: folder.save_epoch(epoch, lambda path: _save(trainer, path)),
            asked,
            folder.drop_older_checkpoints,
        )
        trainer.add_callback(progress)
        seconds = {"loading": time.perf_counter() - started}
        before = _measure(trainer, out, "measuring before", seconds)
        if not run.is_resumed:
            out.log({f"{name}{EVAL}": value for name, value in before.items()}, step=0)
        for callback in callbacks:
            trainer.add_callback(callback)
        if settings.early_stopping_patience is not None:
            trainer.add_callback(EarlyStoppingCallback(settings.early_stopping_patience))
        since = time.perf_counter()
        with deferred_interrupt(asked):
            try:
                trainer.train(resume_from_checkpoint=None if run.checkpoint is None else str(run.checkpoint[1]))
            except Exception as error:  # of pickles, archives and tensors, while a checkpoint is read
                if run.checkpoint is None or progress.has_begun or isinstance(error, UserError):
                    raise
                advice = "delete that checkpoint, and `resume` goes on from the one before"
                raise DamagedFileError(damage(run.checkpoint[1], error, advice), setting="resume") from error
        seconds["training"] = time.perf_counter() - since
        after = _last_measured(trainer, settings, run.checkpoint)
        if after is None:
            after = _measure(trainer, out, "measuring after", seconds)
        summary: dict[str, Any] = {
            "method": method.name,
            "model": settings.model,
            "dataset": settings.dataset if train_rows is None else None,
            "output_dir": str(settings.output_dir),
            "examples": {"train": len(train), "held_out": len(held_out)},
            "shortened": rows.shortened,
            "dropped": dict(rows.dropped),
            "measured_on": "held-out examples" if has_held_out else "training examples",
            "before": before,
            "after": after,
            **method.result(trainer, len(measured_rows.rows)),
            "steps": trainer.state.global_step,
            "epochs": round(float(trainer.state.epoch), 3),
            "tokens": round(rows.tokens * trainer.state.epoch),
            "parameters": {"trained": parameters.trained, "all": parameters.total},
            "peak_memory_bytes": peak_memory_bytes(),
            "versions": {package: metadata.version(package) for package in _PACKAGES},
            "seconds": {**seconds, "this process": time.perf_counter() - started},
            "seed": settings.seed,
        }
        if processes.is_main_process:
            folder.save_trained(lambda path: _save(trainer, path))
        return summary

    summary = record_run(
        folder,
        settings,
        settings.model_dump(mode="json"),
        load_and_train,
        rows_to_keep=lambda checkpoint: rows_until(folder.metrics_path, checkpoint[0] if checkpoint is not None else 0),
        is_writer=processes.is_main_process,
        agree=lambda state: _agreed(state, processes),
    )
    processes.wait_for_everyone()
    return summary


def _agreed(state: RunState, processes: PartialState) -> RunState:
    """Return in every process the state of the folder that the first one has found."""
    found = [state]
    if processes.num_processes > 1:
        broadcast_object_list(found)
    return found[0]


def _measure(trainer: Any, out: MetricsLogger, phase: str, seconds: dict[str, float]) -> dict[str, float]:
    started = time.perf_counter()
    out.phase(phase, len(trainer.get_eval_dataloader()))
    found = held_out_metrics(trainer.evaluate())
    seconds[phase] = time.perf_counter() - started
    return found


def _last_measured(
    trainer: Any, settings: PostTrainingSettings, latest: tuple[int, Any] | None
) -> dict[str, float] | None:
    """Return what was measured after the last step, by this process on the weights that are kept; None if nothing."""
    step = trainer.state.global_step
    rows = [row for row in trainer.state.log_history if row["step"] == step and "eval_loss" in row]
    if not rows or settings.early_stopping_patience is not None or (latest is not None and latest[0] == step):
        return None
    return held_out_metrics(rows[-1])


def _save(trainer: Any, folder: Any) -> None:
    save_trained(trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class, folder)


def read_examples(
    settings: PostTrainingSettings, form: Any, train: Sequence[Example] | None, held_out: Sequence[Example] | None
) -> tuple[list[Example], list[Example]]:
    """Return training and held-out examples.

    Args:
        form: that of the method.
        train: examples given by hand; None reads `settings.dataset`.
        held_out: those to measure on; None holds `settings.eval_fraction` of the others out.

    Raises:
        UserError: the data set cannot be read, or an extra that it needs is not installed.
    """
    if train is None:
        train = load_examples(settings.dataset, form, max_samples=settings.max_samples, seed=settings.seed)
    else:
        train = list(records_of(train))[: settings.max_samples]
    if held_out is not None:
        return list(train), list(records_of(held_out))
    if settings.eval_fraction == 0:
        return list(train), []
    return divide_examples(list(train), settings.eval_fraction, settings.seed)
