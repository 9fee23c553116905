"""The folder of a post-training run, which is itself the trained adapter or model once the run is finished.

    adapter_config.json  adapter_model.safetensors  tokenizer…     what `model=FOLDER` loads
    epoch_N/                                                       the same after each epoch
    run.json  metrics.jsonl  summary.json  checkpoints/checkpoint-N/

The configuration is `run.json`, for `config.json` is the model's own. Checkpoints are written by transformers; one
counts once its last file is there, so that a run killed while writing goes on from the one before.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..errors import UserError
from ..files import reading
from ..policy import ADAPTER_CONFIG
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
