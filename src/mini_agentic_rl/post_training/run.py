"""One run of any method: examples, model, measurement, training, measurement, result.

    read examples -> to tokens -> load -> measure -> [steps, epoch_N/, checkpoints]* -> measure -> write

A run that was killed goes on from its last whole checkpoint with the same order of examples, optimizer and random
numbers. Started by `torchrun` or `accelerate launch`, each process trains on its share and the first one writes.
"""

from __future__ import annotations

import logging
import time
from importlib import metadata
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import EarlyStoppingCallback, PrinterCallback, ProgressCallback

from datasets import Dataset

from ..algorithm.memory import peak_memory_bytes
from ..gateway.render.renderer import ChatRenderer
from ..gateway.served_policy import load_tokenizer
from ..metrics import MetricsLogger, make_logger
from ..metrics.base import EVAL
from ..policy import resolve_device
from ..trainer.run_folder import RunState
from .examples import read_examples
from .figures import measured
from .libraries import quiet_libraries, require_trl
from .method import Callbacks, Method, Rows, S
from .models import TrainedModel, save_trained
from .progress import Progress
from .rows import TokenRows, report_losses
from .run_folder import PostTrainingFolder
from .settings import PostTrainingSettings

logger = logging.getLogger(__name__)

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
    state = _begin(folder, settings, processes)
    if state == "finished":
        return folder.read_summary()
    latest = folder.latest_checkpoint() if state == "resumed" else None
    has_held_out = bool(measured_rows.rows)
    if not has_held_out:
        measured_rows = TokenRows(rows.rows[:_MEASURED_WITHOUT_HELD_OUT])
    with _logger(settings, folder, processes, state, latest) as out:
        out.phase("loading the model")
        loaded = method.load(settings)
        arguments = _arguments(settings, folder, loaded, evaluates=has_held_out)
        trainer = method.trainer(settings).make(
            loaded, arguments, Dataset.from_list(rows.rows), Dataset.from_list(measured_rows.rows)
        )
        for default in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(default)
        trainer.add_callback(
            Progress(out, rows.tokens, lambda epoch: folder.save_epoch(epoch, lambda path: _save(trainer, path)))
        )
        seconds = {"loading": time.perf_counter() - started}
        before = _measure(trainer, out, "measuring before", seconds)
        if state == "new":
            out.log({f"{name}{EVAL}": value for name, value in before.items()}, step=0)
        for callback in callbacks:
            trainer.add_callback(callback)
        if settings.early_stopping_patience is not None:
            trainer.add_callback(EarlyStoppingCallback(settings.early_stopping_patience))
        since = time.perf_counter()
        trainer.train(resume_from_checkpoint=None if latest is None else str(latest[1]))
        seconds["training"] = time.perf_counter() - since
        after = _last_measured(trainer, settings, latest)
        if after is None:
            after = _measure(trainer, out, "measuring after", seconds)
        summary = {
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
            **_effort(trainer, rows),
            "seconds": {**seconds, "this process": time.perf_counter() - started},
            "seed": settings.seed,
        }
        if processes.is_main_process:
            folder.save_trained(lambda path: _save(trainer, path))
            folder.write_summary(summary)  # last: it marks the run as finished
        processes.wait_for_everyone()
    return summary


def _effort(trainer: Any, rows: TokenRows) -> dict[str, Any]:
    """How much was trained, and with what."""
    return {
        "steps": trainer.state.global_step,
        "epochs": round(float(trainer.state.epoch), 3),
        "tokens": round(rows.tokens * trainer.state.epoch),
        "trained_parameters": sum(p.numel() for p in trainer.model.parameters() if p.requires_grad),
        "peak_memory_bytes": peak_memory_bytes(),
        "versions": {package: metadata.version(package) for package in _PACKAGES},
    }


def _begin(folder: PostTrainingFolder, settings: PostTrainingSettings, processes: PartialState) -> RunState:
    """The state of the folder, which the first process makes ready for all."""
    found: list[RunState] = ["new"]
    if processes.is_main_process:
        state = folder.begin(settings.model_dump(mode="json"), resume=settings.resume, overwrite=settings.overwrite)
        folder.remove_torn_checkpoints()
        found = [state]
    if processes.num_processes > 1:
        broadcast_object_list(found)
    return found[0]


def _logger(
    settings: PostTrainingSettings,
    folder: PostTrainingFolder,
    processes: PartialState,
    state: RunState,
    latest: tuple[int, Any] | None,
) -> MetricsLogger:
    if not processes.is_main_process:
        return MetricsLogger()
    resume_step = None if state == "new" else 0 if latest is None else latest[0]
    return make_logger(settings.loggers, folder.path, resume_step=resume_step)


def _arguments(
    settings: PostTrainingSettings, folder: PostTrainingFolder, loaded: TrainedModel, *, evaluates: bool
) -> dict[str, Any]:
    """What all of TRL's configurations share. Mixed precision only where it has something to do: the weights that stay
    as they are are in the device's type already."""
    half = str(loaded.dtype).removeprefix("torch.")
    mixed = loaded.device.type == "cuda" or not settings.use_lora
    measuring = "no" if not evaluates else "epoch" if settings.eval_every is None else "steps"
    stops_early = settings.early_stopping_patience is not None
    every = settings.eval_every if stops_early else settings.checkpoint_every
    return {
        "output_dir": str(folder.checkpoints_path),
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
        "save_total_limit": 2,
        "load_best_model_at_end": stops_early,
        "metric_for_best_model": "eval_loss" if stops_early else None,
        "logging_steps": settings.logging_steps,
        "logging_first_step": True,
        "report_to": "none",
        "disable_tqdm": True,
        "seed": settings.seed,
    }


def _measure(trainer: Any, out: MetricsLogger, phase: str, seconds: dict[str, float]) -> dict[str, float]:
    started = time.perf_counter()
    out.phase(phase, len(trainer.get_eval_dataloader()))
    found = measured(trainer.evaluate())
    seconds[phase] = time.perf_counter() - started
    return found


def _last_measured(
    trainer: Any, settings: PostTrainingSettings, latest: tuple[int, Any] | None
) -> dict[str, float] | None:
    """What was measured after the last step, in this process and with the weights that are kept; None if nothing."""
    step = trainer.state.global_step
    rows = [row for row in trainer.state.log_history if row["step"] == step and "eval_loss" in row]
    if not rows or settings.early_stopping_patience is not None or (latest is not None and latest[0] == step):
        return None
    return measured(rows[-1])


def _save(trainer: Any, folder: Any) -> None:
    save_trained(trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class, folder)
