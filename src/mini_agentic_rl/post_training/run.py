"""One run of a method of TRL.

    read examples -> tokenise -> load model -> evaluate -> [steps, epoch_N/, checkpoints]* -> evaluate -> save

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
from typing import Any, Final, Generic, TypeAlias, TypeVar

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from huggingface_hub import constants
from transformers import EarlyStoppingCallback, PrinterCallback, ProgressCallback, set_seed

import datasets
from datasets import Dataset

from ..datasets import Form, divide_examples, load_examples, records_of
from ..errors import MissingPackageError, UserError
from ..files import DamagedFileError, damage
from ..gateway import ChatRenderer, load_tokenizer
from ..logging import ignore_library_notices, only_errors_of
from ..metrics import EVAL, MetricsLogger, check_loggers, rows_until
from ..policy import count_parameters, resolve_device
from ..processes import deferred_interrupt, peak_memory_bytes
from ..trainer import RecordedRun, RunState, open_run
from .models import TrainedModel, load_causal, save_trained, write_no_cards
from .rows import Example, TokenRows, report_losses
from .run_folder import PostTrainingFolder, TrainingProgress, held_out_metrics
from .settings import PostTrainingSettings

logger = logging.getLogger(__name__)

Rows: TypeAlias = Sequence[Example] | None
"""Examples given by the caller; None reads `settings.dataset`."""

S = TypeVar("S", bound=PostTrainingSettings)


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


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silence TRL's usage report to the Hub, progress bars and library notices for the duration of a block."""
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


_EVALUATED_TRAINING_ROWS: Final = 64
"""Training rows that the loss is measured on where nothing is held out."""


@dataclass(frozen=True)
class RunData:
    """The examples of a run as token ids."""

    rows: TokenRows
    """Rows to train on."""
    evaluated: list[Any]
    """Held-out rows; where nothing is held out, the first training rows."""
    has_held_out: bool
    counts: dict[str, int]
    """Number of examples, `train` and `held_out`."""


def prepare(
    settings: S,
    form: Form,
    tokenise: Callable[[ChatRenderer, Sequence[Example], S], TokenRows],
    train_rows: Rows,
    eval_rows: Rows,
) -> tuple[PostTrainingFolder, RunData]:
    """Check the settings of a run, and read and tokenise its examples.

    Raises:
        UserError: a setting cannot work, the output folder holds a model, or no example is left to train on.
    """
    check_loggers(settings.loggers)
    folder = PostTrainingFolder(settings.output_dir)
    folder.refuse_model(settings.model)
    renderer = ChatRenderer(load_tokenizer(settings.model))
    train, held_out = read_examples(settings, form, train_rows, eval_rows)
    rows = tokenise(renderer, train, settings)
    report_losses(rows)
    held_out_rows = tokenise(renderer, held_out, settings).rows
    evaluated = held_out_rows or rows.rows[:_EVALUATED_TRAINING_ROWS]
    return folder, RunData(rows, evaluated, bool(held_out_rows), {"train": len(train), "held_out": len(held_out)})


def run_summary(
    method: str,
    settings: PostTrainingSettings,
    data: RunData,
    *,
    dataset: str | None,
    steps: int,
    epochs: float,
    **more: Any,
) -> dict[str, Any]:
    """Return the summary of a run; `more` are further entries."""
    packages = ("mini-agentic-rl", "torch", "transformers", "peft", *(() if method == "sft" else ("trl",)))
    return {
        "method": method,
        "model": settings.model,
        "dataset": dataset,
        "output_dir": str(settings.output_dir),
        "examples": data.counts,
        "shortened": data.rows.shortened,
        "dropped": dict(data.rows.dropped),
        "measured_on": "held-out examples" if data.has_held_out else "training examples",
        **more,
        "steps": steps,
        "epochs": round(epochs, 3),
        "tokens": round(data.rows.tokens * epochs),
        "peak_memory_bytes": peak_memory_bytes(),
        "versions": {package: metadata.version(package) for package in packages},
        "seed": settings.seed,
    }


def run_method(method: Method[S], settings: S, train_rows: Rows, eval_rows: Rows) -> dict[str, Any]:
    """Run the method and return its summary.

    Args:
        train_rows: examples in the method's form; None reads `settings.dataset`.
        eval_rows: held-out examples; None holds out `settings.eval_fraction` of the others.

    Raises:
        UserError: a setting cannot work, or the output folder holds something else.
        MissingPackageError: TRL is not installed.
    """
    if importlib.util.find_spec("trl") is None:
        raise MissingPackageError("training on written rows", "trl", extra="trl")
    with quiet_libraries():
        return _run(method, settings, train_rows, eval_rows)


def _run(method: Method[S], settings: S, train_rows: Rows, eval_rows: Rows) -> dict[str, Any]:
    started = time.perf_counter()
    device = resolve_device(settings.device)
    folder, data = prepare(settings, method.form, method.tokenise, train_rows, eval_rows)
    processes = PartialState(cpu=device.type == "cpu")

    def train_and_measure(run: RecordedRun) -> dict[str, Any]:
        run.logger.phase("loading the model")
        loaded = method.load(settings)
        arguments = _training_arguments(settings, folder.checkpoints_path, loaded, evaluates=data.has_held_out)
        trainer_class, configuration, options = method.parts(settings)
        set_seed(settings.seed)  # TRL 1.14 draws a new adapter before it sets the seed
        trainer = trainer_class(
            model=loaded.model,
            args=configuration(**{**arguments, **options}),
            train_dataset=Dataset.from_list(data.rows.rows),
            eval_dataset=Dataset.from_list(data.evaluated),
            processing_class=loaded.tokenizer,
            peft_config=loaded.new_adapter,
        )
        write_no_cards(trainer)
        parameters = count_parameters(trainer.model)
        run.logger.note(str(parameters))
        for default in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(default)

        def save(path: Path) -> None:
            save_trained(trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class, path)

        stop = threading.Event()
        progress = TrainingProgress(
            run.logger,
            data.rows.tokens,
            lambda epoch: folder.save_epoch(epoch, save),
            stop,
            folder.drop_older_checkpoints,
        )
        trainer.add_callback(progress)
        seconds = {"loading": time.perf_counter() - started}
        before = _evaluate(trainer, run.logger, "measuring before", seconds)
        if not run.is_resumed:
            run.logger.log({f"{name}{EVAL}": value for name, value in before.items()}, step=0)
        if settings.early_stopping_patience is not None:
            trainer.add_callback(EarlyStoppingCallback(settings.early_stopping_patience))
        since = time.perf_counter()
        with deferred_interrupt(stop):
            try:
                trainer.train(resume_from_checkpoint=None if run.checkpoint is None else str(run.checkpoint[1]))
            except Exception as error:  # of pickles, archives and tensors, while a checkpoint is read
                if run.checkpoint is None or progress.has_begun or isinstance(error, UserError):
                    raise
                raise damaged_checkpoint(run.checkpoint[1], error) from error
        seconds["training"] = time.perf_counter() - since
        last_step = trainer.state.global_step
        evaluations = [row for row in trainer.state.log_history if row["step"] == last_step and "eval_loss" in row]
        trained_here = run.checkpoint is None or run.checkpoint[0] != last_step
        if evaluations and trained_here and settings.early_stopping_patience is None:  # else of other weights
            after = held_out_metrics(evaluations[-1])
        else:
            after = _evaluate(trainer, run.logger, "measuring after", seconds)
        summary = run_summary(
            method.name,
            settings,
            data,
            dataset=settings.dataset if train_rows is None else None,
            steps=last_step,
            epochs=float(trainer.state.epoch),
            before=before,
            after=after,
            parameters={"trained": parameters.trained, "all": parameters.total},
            **method.result(trainer, len(data.evaluated)),
            seconds={**seconds, "this process": time.perf_counter() - started},
        )
        if processes.is_main_process:
            folder.save_trained(save)
        return summary

    return record_in_processes(folder, settings, train_and_measure, processes)


def damaged_checkpoint(path: Path, error: Exception) -> DamagedFileError:
    """Return the error of a checkpoint that cannot be read."""
    advice = "delete that checkpoint, and `resume` goes on from the one before"
    return DamagedFileError(damage(path, error, advice), setting="resume")


def record_in_processes(
    folder: PostTrainingFolder,
    settings: PostTrainingSettings,
    train: Callable[[RecordedRun], dict[str, Any]],
    processes: PartialState,
) -> dict[str, Any]:
    """Record a training that all processes run and the first one writes; return its summary."""

    def first_state(state: RunState) -> RunState:
        """Return in every process the state of the folder that the first one found."""
        states = [state]
        if processes.num_processes > 1:
            broadcast_object_list(states)
        return states[0]

    with open_run(
        folder,
        settings,
        settings.model_dump(mode="json"),
        rows_to_keep=lambda checkpoint: rows_until(folder.metrics_path, checkpoint[0] if checkpoint is not None else 0),
        is_writer=processes.is_main_process,
        agree=first_state,
    ) as run:
        if not run.is_finished:
            run.summary = train(run)
    processes.wait_for_everyone()
    return folder.read_summary() if run.summary is None else dict(run.summary)


def _evaluate(trainer: Any, out: MetricsLogger, phase: str, seconds: dict[str, float]) -> dict[str, float]:
    started = time.perf_counter()
    out.phase(phase, len(trainer.get_eval_dataloader()))
    metrics = held_out_metrics(trainer.evaluate())
    seconds[phase] = time.perf_counter() - started
    return metrics


def read_examples(
    settings: PostTrainingSettings, form: Form, train: Rows, held_out: Rows
) -> tuple[list[Example], list[Example]]:
    """Return training and held-out examples; arguments as `run_method`.

    Raises:
        UserError: the data set cannot be read, or an extra that it needs is not installed.
    """
    examples: list[Example]
    if train is None:
        examples = list(load_examples(settings.dataset, form, max_samples=settings.max_samples, seed=settings.seed))
    else:
        examples = list(records_of(train))[: settings.max_samples]
    if held_out is not None:
        return examples, list(records_of(held_out))
    return divide_examples(examples, settings.eval_fraction, settings.seed)
