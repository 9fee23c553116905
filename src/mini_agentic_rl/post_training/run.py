"""One run of post-training, for SFT and for the methods of TRL.

    read examples -> tokenise -> load model -> evaluate -> [steps, epoch_N/, checkpoints]* -> evaluate -> save

A killed run continues from its last complete checkpoint with the same order of examples, optimizer and random state.
Started by `torchrun` or `accelerate launch`, each process trains on its share and the first one writes.

    adapter_config.json  adapter_model.safetensors  tokenizer…     the files that `model=FOLDER` loads
    epoch_N/                                                       the same after each epoch
    run.json  metrics.jsonl  summary.json  checkpoints/checkpoint-N/

A finished run's folder is itself the adapter or model. The configuration is `run.json`, because `config.json` is the
model's. A checkpoint is complete when its last file exists, so a run killed while writing continues from the one
before.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeAlias, TypeVar

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from huggingface_hub import constants
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

import datasets

from ..datasets import Form, divide_examples, load_examples, records_of
from ..errors import UserError
from ..files import DamagedFileError, damage, reading, remove_folder, rename_over
from ..gateway import ChatRenderer, load_tokenizer
from ..logging import ignore_library_notices, only_errors_of
from ..metrics import EVAL, check_loggers, rows_until
from ..policy import ADAPTER_CONFIG, ParameterCount, resolve_device
from ..processes import peak_memory_bytes
from ..trainer import RecordedRun, RunFolder, RunState, open_run
from .models import RUN_FILE
from .rows import Example, TokenRows, report_losses
from .settings import PostTrainingSettings

STATE_FILE = "trainer_state.json"
"""Progress of a run; the last file of a checkpoint to be written."""
_KEPT = 2
"""Checkpoints that stay, beside the best."""
_RESULT_FILES = "result.json"
"""Lists the files of the result, so that `overwrite` deletes those and nothing else."""
_EVALUATED_TRAINING_ROWS: Final = 64
"""Training rows that the loss is measured on where nothing is held out."""

Rows: TypeAlias = Sequence[Example] | None
"""Examples given by the caller; None reads `settings.dataset`."""
S = TypeVar("S", bound=PostTrainingSettings)


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
        is_model = os.path.realpath(Path(model).expanduser()) == os.path.realpath(self.path)
        if is_model or (holds_model and not self.config_path.exists()):
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
                remove_folder(folder)

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
            rename_over(written / name, self.path / name)
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


class PostTraining(ABC, Generic[S]):
    """A run of one method: the examples as token ids, the model, and its training loop."""

    name: ClassVar[str]
    """Name of the method."""
    form: ClassVar[Form]
    """Form of its examples; see `load_examples`."""
    packages: ClassVar[Sequence[str]] = ("mini-agentic-rl", "torch", "transformers", "peft")
    """Packages whose versions are in the summary."""

    run: RecordedRun
    folder: PostTrainingFolder
    processes: PartialState
    tokens: TokenRows
    """The rows to train on."""
    evaluated: list[Any]
    """Held-out rows; where nothing is held out, the first training rows."""
    has_held_out: bool

    parameters: ParameterCount
    step = 0
    """Number of finished optimizer steps."""
    epochs = 0.0
    """Number of finished passes over the examples."""
    last_evaluation: dict[str, float] | None = None
    """Metrics of the present weights on the held-out examples; None if they were not measured."""

    def __init__(self, settings: S) -> None:
        self.settings = settings

    @abstractmethod
    def tokenise(self, renderer: ChatRenderer, examples: Sequence[Example]) -> TokenRows:
        """Return examples as rows of token ids.

        Raises:
            UserError: an example cannot be rendered.
        """

    @abstractmethod
    def load(self) -> None:
        """Load the model, and for SFT the checkpoint of a resumed run."""

    @abstractmethod
    def evaluate(self, phase: str) -> dict[str, float]:
        """Return `loss` and further metrics of the evaluated rows; `phase` is shown as the phase of the run."""

    @abstractmethod
    def take_steps(self) -> None:
        """Take the optimizer steps that are left."""

    @abstractmethod
    def save_model(self, path: Path) -> None:
        """Write the adapter or all weights, and the tokenizer, into a folder."""

    def result(self) -> dict[str, Any]:
        """Return further entries of the summary, after the last evaluation."""
        return {}

    def train(self, train_rows: Rows, eval_rows: Rows) -> dict[str, Any]:
        """Train and measure the model, and return the summary of the run.

        Args:
            train_rows: examples of this form; None reads `settings.dataset`.
            eval_rows: held-out examples; None holds out `settings.eval_fraction` of the others.

        Raises:
            UserError: a setting cannot work, or the output folder holds something else.
        """
        started = time.perf_counter()
        settings = self.settings
        with quiet_libraries():
            check_loggers(settings.loggers)
            device = resolve_device(settings.device)
            self.folder = PostTrainingFolder(settings.output_dir)
            self.folder.refuse_model(settings.model)
            renderer = ChatRenderer(load_tokenizer(settings.model))
            train, held_out = read_examples(settings, self.form, train_rows, eval_rows)
            self.tokens = self.tokenise(renderer, train)
            report_losses(self.tokens)
            held_out_rows = self.tokenise(renderer, held_out).rows
            self.evaluated = held_out_rows or self.tokens.rows[:_EVALUATED_TRAINING_ROWS]
            self.has_held_out = bool(held_out_rows)
            self.processes = PartialState(cpu=device.type == "cpu")
            with self._opened() as self.run:
                if not self.run.is_finished:
                    self.run.logger.phase("loading the model")
                    self.load()
                    self.run.logger.note(str(self.parameters))
                    measured = self._measured(started)
                    self.run.summary = {
                        "method": self.name,
                        "model": settings.model,
                        "output_dir": str(settings.output_dir),
                        "examples": {"train": len(train), "held_out": len(held_out)},
                        "shortened": self.tokens.shortened,
                        "dropped": dict(self.tokens.dropped),
                        "measured_on": "held-out examples" if self.has_held_out else "training examples",
                        "dataset": settings.dataset if train_rows is None else None,
                        **measured,
                        **self.result(),
                        "parameters": {"trained": self.parameters.trained, "all": self.parameters.total},
                        "steps": self.step,
                        "epochs": round(self.epochs, 3),
                        "tokens": round(self.tokens.tokens * self.epochs),
                        "peak_memory_bytes": peak_memory_bytes(),
                        "versions": {package: metadata.version(package) for package in self.packages},
                        "seed": settings.seed,
                    }
                    if self.processes.is_main_process:
                        self.folder.save_trained(self.save_model)
            self.processes.wait_for_everyone()
        return self.folder.read_summary() if self.run.summary is None else dict(self.run.summary)

    def _opened(self) -> AbstractContextManager[RecordedRun]:
        """Open the run in every process; the first one writes."""
        processes, metrics_path = self.processes, self.folder.metrics_path

        def state_of_first(state: RunState) -> RunState:
            """Return in every process the state of the folder in the first one."""
            states = [state]
            if processes.num_processes > 1:
                broadcast_object_list(states)
            return states[0]

        return open_run(
            self.folder,
            self.settings,
            self.settings.model_dump(mode="json"),
            rows_to_keep=lambda checkpoint: rows_until(metrics_path, checkpoint[0] if checkpoint is not None else 0),
            is_writer=processes.is_main_process,
            agree=state_of_first,
        )

    def _measured(self, started: float) -> dict[str, Any]:
        """Measure, train and measure again; return the metrics `before` and `after`, and `seconds` by phase."""
        seconds = {"loading": time.perf_counter() - started}

        def measure(phase: str) -> dict[str, float]:
            since = time.perf_counter()
            metrics = self.evaluate(phase)
            seconds[phase] = time.perf_counter() - since
            return metrics

        before = measure("measuring before")
        if not self.run.is_resumed:
            self.run.logger.log({f"{name}{EVAL}": value for name, value in before.items()}, step=0)
        since = time.perf_counter()
        self.take_steps()
        seconds["training"] = time.perf_counter() - since
        after = self.last_evaluation or measure("measuring after")
        seconds["this process"] = time.perf_counter() - started
        return {"before": before, "after": after, "seconds": seconds}


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


def damaged_checkpoint(path: Path, error: Exception) -> DamagedFileError:
    """Return the error of a checkpoint that cannot be read."""
    advice = "delete that checkpoint, and `resume` goes on from the one before"
    return DamagedFileError(damage(path, error, advice), setting="resume")


def read_examples(
    settings: PostTrainingSettings, form: Form, train: Rows, held_out: Rows
) -> tuple[list[Example], list[Example]]:
    """Return training and held-out examples; arguments as `PostTraining.train`.

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
