"""Trainers as objects: what all of them share, and those that learn from written rows.

A run keeps its files in a folder of its method inside the configuration's `output_dir`; `save_model()` puts the trained
adapter (or model) and the tokenizer into `output_dir` itself, or where it is told to.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...commands import check_model
from ...errors import UserError
from ...policy import ADAPTER_CONFIG
from .config import TrainingConfig
from .models import model_source
from .supervised import supervise

_FINISHED = "summary.json"
_RUN_FILES = (_FINISHED, "run.json", "metrics.jsonl")
"""Files of a run that are no part of its result."""

Rows = Sequence[Mapping[str, Any]]


class TrainerWrapper(ABC):
    """The base of all trainers.

    Args:
        config: the settings; None takes the defaults.
        dataset: the rows to train on.
    """

    method = ""
    """Name of the folder of its runs."""

    def __init__(self, config: TrainingConfig | None = None, dataset: Rows | None = None) -> None:
        self.config = config or TrainingConfig()
        self.dataset = dataset
        self.summary: dict[str, Any] | None = None
        """Summary that `train` has returned."""

    @property
    def run_folder(self) -> Path:
        """The folder that the run writes."""
        return Path(self.config.output_dir) / self.method

    def setup_model(self) -> None:
        """Look whether the model can be had, before anything long begins; the embedded one is fetched. It is loaded by
        `train`.

        Raises:
            UserError: there is no such model.
        """
        check_model(model_source(self.config), "auto")

    def train(self, *, resume: bool = False, overwrite: bool = False) -> dict[str, Any]:
        """Train and return the summary of the run.

        Args:
            resume: go on with the run of before.
            overwrite: replace the run of before.

        Raises:
            UserError: there are no rows, a setting cannot work, or a run of before is there.
        """
        rows = [] if self.dataset is None else list(self.dataset)
        if not rows:
            raise UserError(f"{type(self).__name__} has no dataset: give it rows to train on")
        self.summary = self._train(rows, resume, overwrite)
        return self.summary

    def save_model(self, output_dir: str | Path | None = None) -> Path:
        """Write what was trained, and its tokenizer, and return the folder.

        Args:
            output_dir: None takes the configuration's.

        Raises:
            UserError: nothing was trained yet, or the run is not finished.
        """
        if not (self.run_folder / _FINISHED).is_file():
            raise UserError(f"{type(self).__name__} has trained nothing yet: call train() before save_model()")
        target = Path(self.config.output_dir if output_dir is None else output_dir)
        target.mkdir(parents=True, exist_ok=True)
        files = [file for file in self._result_folder().iterdir() if file.is_file() and file.name not in _RUN_FILES]
        for file in sorted(files, key=lambda file: file.name == ADAPTER_CONFIG):  # which makes the folder an adapter's
            shutil.copy2(file, target / file.name)
        return target

    @abstractmethod
    def _train(self, rows: Rows, resume: bool, overwrite: bool) -> dict[str, Any]: ...

    @abstractmethod
    def _result_folder(self) -> Path: ...


class SupervisedTrainerWrapper(TrainerWrapper):
    """The base of the trainers that learn from written rows.

    Args:
        config: the settings; None takes the defaults.
        dataset: the rows to train on.
        options: settings of the method that `TrainingConfig` does not have, as `beta`.
    """

    def __init__(self, config: TrainingConfig | None = None, dataset: Rows | None = None, **options: Any) -> None:
        super().__init__(config, dataset)
        self.options = options

    def _train(self, rows: Rows, resume: bool, overwrite: bool) -> dict[str, Any]:
        return supervise(
            self.method, self.config, rows, self.run_folder, options=self.options, resume=resume, overwrite=overwrite
        )

    def _result_folder(self) -> Path:
        return self.run_folder


class SFTTrainerWrapper(SupervisedTrainerWrapper):
    """Supervised fine-tuning on rows with `messages`."""

    method = "sft"


class DPOTrainerWrapper(SupervisedTrainerWrapper):
    """Direct preference optimization on rows with `prompt`, `chosen` and `rejected`."""

    method = "dpo"


class KTOTrainerWrapper(SupervisedTrainerWrapper):
    """Kahneman-Tversky optimization on rows with `prompt`, `completion` and `label` (true for a good completion)."""

    method = "kto"


class ORPOTrainerWrapper(SupervisedTrainerWrapper):
    """Odds ratio preference optimization on rows with `prompt`, `chosen` and `rejected`."""

    method = "orpo"


class RewardTrainerWrapper(SupervisedTrainerWrapper):
    """A reward model from rows with `prompt`, `chosen` and `rejected`."""

    method = "reward"
