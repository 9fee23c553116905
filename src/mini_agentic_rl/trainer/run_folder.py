"""The folder of one training run: its files, each written whole or not at all.

Every file and every checkpoint is written under a temporary name, synced to disk and renamed, so that a process killed
at any instant leaves either the old state or the new one. A folder is never taken over silently: an existing run is
continued only with `resume`, under the configuration it was started with, and replaced only with `overwrite`.

    config.json  metrics.jsonl  evaluations.jsonl  resumes.jsonl  summary.json  rollouts.db  report.html
    adapter/  epoch_N/  prompt/  checkpoints/step_N/  logs/

Where several adapters are trained, each is in `adapters/NAME/` instead of `adapter/`. `epoch_N/` holds the same as it
was after each pass over the tasks.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from ..algorithm import ResultKind
from ..errors import UserError
from ..files import (
    DiskFullError,
    make_private_file,
    make_private_folder,
    read_json,
    remove_folder,
    remove_leftovers,
    write_folder,
    write_json,
)
from ..metrics import read_metrics
from ..redaction import remember_secrets, without_secrets_within
from ..samplers import SamplerSettings
from .evaluations import AnswerRows, add_answers

MAY_CHANGE: Final = frozenset(
    {
        *("resume", "overwrite", "output_dir", "json", "json_output", "console", "loggers"),
        *("metrics_port", "metrics_host", "otlp", "otlp_messages", "otlp_tokens"),
        *("ranks", "rank_timeout", "shard", "sampling", *SamplerSettings.model_fields),
        *("strategy", "ray_address", "n_runners", "runner_cpus", "runner_gpus", "runner_env"),
    }
)
"""Top-level keys of a configuration in which a resumed run may differ from its first start."""


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a phrase for each setting that has changed, as `loop.seed (was 0, now 1)`, without those of `MAY_CHANGE`.

    Args:
        before: the configuration as it was read, JSON values in groups.
        now: the configuration now; it is compared as JSON values.
    """
    old, new = _flat(before), _flat(json.loads(json.dumps(now)))
    return [
        f"{key} (was {_shown(old, key)}, now {_shown(new, key)})"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and key.split(".")[0] not in MAY_CHANGE
    ]


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            flat |= _flat(item, f"{prefix}{key}.")
        else:
            flat[prefix + key] = item
    return flat


def _shown(flat: Mapping[str, Any], key: str) -> str:
    return json.dumps(flat[key], ensure_ascii=False) if key in flat else "not set"


logger = logging.getLogger(__name__)

RunState = Literal["new", "resumed", "finished"]

_EPOCH = re.compile(r"epoch_\d+")
_KEPT_CHECKPOINTS: Final = 2


class RunFolder:
    """Paths of a run, and the writing of its files, whole or not at all.

    Args:
        path: the folder; created by `begin`.
        usual: defaults of settings that the configuration of a run begun by an older version does not have.
    """

    checkpoint_name: ClassVar[re.Pattern[str]] = re.compile(r"step_([0-9]{1,15})")
    """Name of a checkpoint; its group is the step."""

    def __init__(self, path: str | Path, *, usual: Mapping[str, Any] | None = None) -> None:
        self.path = Path(path)
        self._usual = usual or {}
        self.config_path = self.path / "config.json"
        self.summary_path = self.path / "summary.json"
        self.metrics_path = self.path / "metrics.jsonl"
        self.evaluations_path = self.path / "evaluations.jsonl"
        self.resumes_path = self.path / "resumes.jsonl"
        self.rollouts_path = self.path / "rollouts.db"
        self.report_path = self.path / "report.html"
        self.adapter_path = self.path / "adapter"
        self.adapters_path = self.path / "adapters"
        self.prompt_path = self.path / "prompt"
        self.checkpoints_path = self.path / "checkpoints"
        self.logs_path = self.path / "logs"

    def begin(
        self,
        config: Mapping[str, Any],
        *,
        resume: bool = False,
        overwrite: bool = False,
    ) -> RunState:
        """Make the folder ready for a run with this configuration.

        Args:
            config: The configuration, made of JSON values; written to `config.json`.
            resume: Continue the run in the folder; a folder without one begins a new run.
            overwrite: Delete the run in the folder first.

        Returns:
            "new": start from the beginning. "resumed": an unfinished run, go on from `latest_checkpoint()`, or from
            the beginning where that is None. "finished": the run to be resumed already has its summary.

        Raises:
            UserError: the folder cannot be used like this; the message says which setting to change.
        """
        remember_secrets(config)
        if resume and overwrite:
            raise UserError("`resume` and `overwrite` contradict each other: give one of them")
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file: choose a folder", setting="output_dir")
        self._refuse_links()
        if not resume:
            self._refuse_what_is_no_run()
        if overwrite:
            self.delete()
        elif not resume:
            self._refuse_to_overwrite()
        for folder in (self.path, self.checkpoints_path):
            remove_leftovers(folder)
        if resume and self.config_path.exists():
            before = without_secrets_within({**json.loads(json.dumps(self._usual)), **self.read_config()})
            changed = changed_settings(before, without_secrets_within(config))
            if changed:
                raise UserError(
                    f"the run in {self.path} was started with other settings: {', '.join(changed)}. "
                    "Give the same settings, or `overwrite` to start again",
                    setting="resume",
                )
            return "finished" if self.summary_path.exists() else "resumed"
        if not resume:
            self.delete()  # an abandoned run without a checkpoint: its rows must not mix with the new ones
        try:
            make_private_folder(self.checkpoints_path)
            write_json(self.config_path, without_secrets_within(config), private=True)
        except OSError as error:
            raise UserError(f"{self.path} cannot be written: {error.strerror}", setting="output_dir") from error
        return "new"

    def note_resume(self, step: int) -> None:
        """Append to `resumes.jsonl` that the run is resumed after so many finished steps; a failure is only logged."""
        line = json.dumps({"time": round(time.time(), 3), "step": step}) + "\n"
        try:
            make_private_file(self.resumes_path)
            with self.resumes_path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            logger.warning("that the run was resumed is not noted in %s: %s", self.resumes_path, error.strerror)

    def resumes(self) -> list[dict[str, Any]]:
        """Return `time` and `step` of each time that the run was resumed, in order."""
        return read_metrics(self.resumes_path)

    def read_config(self) -> dict[str, Any]:
        """Return the configuration that the run was begun with; empty if there is none."""
        return self._read(self.config_path)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write `summary.json`, which also marks the run as finished.

        Raises:
            UserError: it cannot be written; an earlier summary is still whole.
        """
        with self.writing(self.summary_path):
            write_json(self.summary_path, without_secrets_within(summary), private=True)

    @contextmanager
    def writing(self, path: Path) -> Iterator[None]:
        """Name `path` and the advice in the error of a failed write.

        Raises:
            UserError: the block raised an OSError.
        """
        try:
            yield
        except OSError as error:
            advice = "no space left; free some" if isinstance(error, DiskFullError) else f"{error.strerror}; mend that"
            raise UserError(
                f"{path.name} was not written to {self.path}: {advice} and continue with `resume`", setting="output_dir"
            ) from error

    def read_summary(self) -> dict[str, Any]:
        """Return the summary of a finished run; empty if it has none."""
        return self._read(self.summary_path)

    def checkpoint_path(self, step: int) -> Path:
        """Return the folder in which the checkpoint of a step is or will be."""
        return self.checkpoints_path / f"step_{step}"

    def checkpoints(self) -> list[tuple[int, Path]]:
        """Return (step, folder) of every finished checkpoint, oldest first."""
        return sorted((step, folder) for step, folder in self.checkpoint_folders() if self.is_whole(folder))

    def checkpoint_folders(self) -> list[tuple[int, Path]]:
        """Return (step, folder) of every checkpoint, whether or not it is finished."""
        if not self.checkpoints_path.is_dir():
            return []
        entries = [entry for entry in self.checkpoints_path.iterdir() if entry.is_dir()]
        matches = [(self.checkpoint_name.fullmatch(entry.name), entry) for entry in entries]
        return [(int(match[1]), entry) for match, entry in matches if match]

    def is_whole(self, checkpoint: Path) -> bool:
        """Return True if a checkpoint is complete. Here it gets its name only then; subclasses check its files."""
        return True

    def latest_checkpoint(self) -> tuple[int, Path] | None:
        """Return (step, folder) of the newest finished checkpoint, or None."""
        return next(reversed(self.checkpoints()), None)

    def save_checkpoint(self, step: int, write: Callable[[Path], None], keep: Collection[int] = ()) -> Path | None:
        """Write the checkpoint of a step and drop all but the newest two.

        Args:
            step: Number of finished training steps.
            write: Fills an empty folder that it is given.
            keep: Steps whose checkpoints stay all the same.

        Returns:
            The finished checkpoint. None if the disk is full: that is logged in one line, the partial checkpoint is
            removed, earlier ones are untouched, and the run can go on.

        Raises:
            UserError: the disk cannot be written; the partial checkpoint is removed.
            Exception: whatever else `write` raised; likewise.
        """
        path = self.checkpoint_path(step)
        try:
            write_folder(path, write)
        except DiskFullError:
            logger.error(
                "Checkpoint of step %d not written: no space left in the output folder %s. "
                "The run goes on; free some space before the next checkpoint.",
                step,
                self.path,
            )
            return None
        except OSError as error:
            raise UserError(
                f"the checkpoint of step {step} was not written to {self.path}: {error.strerror}; earlier ones are "
                "whole: mend that, and go on with `resume`",
                setting="output_dir",
            ) from error
        older = [old for old_step, old in self.checkpoints() if old_step <= step and old_step not in keep]
        for old in older[:-_KEPT_CHECKPOINTS]:
            remove_folder(old)
        return path

    def save_result(self, kind: ResultKind, write: Callable[[Path], None]) -> Path:
        """Write `adapter/`, `adapters/` or `prompt/`, replacing an earlier one only when the new one is whole.

        Raises:
            UserError: the disk is full or cannot be written; an earlier result is untouched.
            Exception: whatever else `write` raised; an earlier result is untouched.
        """
        path = {"adapter": self.adapter_path, "adapters": self.adapters_path, "prompt": self.prompt_path}[kind]
        self.write_whole(path, write)
        return path

    def save_answers(self, rows: AnswerRows, keep: Collection[str]) -> None:
        """Write the answers of a measurement to `evaluations.jsonl`, beside those of the earlier ones named in `keep`.

        Raises:
            UserError: it cannot be written, or is damaged; the earlier one is untouched.
        """
        with self.writing(self.evaluations_path):
            add_answers(self.evaluations_path, without_secrets_within(rows), keep)

    def save_epoch(self, epoch: int, write: Callable[[Path], None]) -> None:
        """Write `epoch_N/`: the trained weights after so many passes over the tasks.

        Raises:
            UserError: the disk is full or cannot be written; the earlier one is untouched.
            Exception: whatever else `write` raised; the earlier one is untouched.
        """
        self.write_whole(self.path / f"epoch_{epoch}", write)

    def epochs(self) -> list[Path]:
        """Return the folders that `save_epoch` has written."""
        if not self.path.is_dir():
            return []
        return [entry for entry in sorted(self.path.glob("epoch_*")) if _EPOCH.fullmatch(entry.name) and entry.is_dir()]

    def write_whole(self, path: Path, write: Callable[[Path], None]) -> None:
        """Fill a folder of the run, whole or not at all.

        Raises:
            UserError: the disk is full or cannot be written; the earlier one is untouched.
            Exception: whatever else `write` raised; the earlier one is untouched.
        """
        with self.writing(path):
            write_folder(path, write)

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            return read_json(path)
        except ValueError as error:
            raise UserError(
                f"{path} is damaged ({error}): choose another folder, or give `overwrite`", setting="output_dir"
            ) from error

    def _refuse_what_is_no_run(self) -> None:
        """Refuse a folder whose files have the names of a run's files but come from something else."""
        existing = [path.name for path in self.owned() if path.exists()]
        if existing == [self.checkpoints_path.name] and not any(self.checkpoints_path.iterdir()):
            return  # a run that was killed before it wrote its configuration
        if existing and not self._is_run():
            raise UserError(
                f"{self.path} holds {', '.join(existing)}, but no run wrote that (it has no {self.config_path.name} of "
                "a run beside its checkpoints): choose another folder",
                setting="output_dir",
            )

    def _refuse_links(self) -> None:
        """Refuse links: a run makes none, and writes and deletes nothing behind one."""
        for path in [*self.owned(), *(folder for _, folder in self.checkpoint_folders())]:
            if path.is_symlink():
                raise UserError(
                    f"{path} is a link, which no run makes: remove the link, or choose another folder",
                    setting="output_dir",
                )

    def _is_run(self) -> bool:
        """Return True if the folder has the files that a run makes first; a model has a `config.json` too."""
        if not (self.config_path.is_file() and self.checkpoints_path.is_dir()):
            return False
        try:
            config = read_json(self.config_path)
        except (OSError, ValueError):  # the damaged configuration of a run
            return True
        return not {"architectures", "model_type"} & set(config)

    def _refuse_to_overwrite(self) -> None:
        if self.summary_path.exists():
            raise UserError(
                f"{self.path} holds a finished run: choose another folder, or give `overwrite` to replace it",
                setting="output_dir",
            )
        latest = self.latest_checkpoint()
        trained = next((path.name for path in self.results() if path.exists()), None)
        if latest is not None:
            trained = f"a checkpoint at step {latest[0]}"
        if trained is not None:
            raise UserError(
                f"{self.path} holds an unfinished run with {trained}: give `resume` to continue it or `overwrite` to "
                "replace it",
                setting="output_dir",
            )

    def results(self) -> list[Path]:
        """Return the paths of the results of a run."""
        return [self.adapter_path, self.adapters_path, self.prompt_path, *self.epochs()]

    def owned(self) -> list[Path]:
        """Return the paths that a run writes, and that `delete` removes; of `checkpoints/` and `logs/` only its own
        files are removed."""
        database = [self.rollouts_path.with_name(self.rollouts_path.name + end) for end in ("", "-wal", "-shm")]
        files = [self.config_path, self.summary_path, self.metrics_path, self.evaluations_path, self.report_path]
        files.append(self.resumes_path)
        return [*files, *database, *self.results(), self.logs_path, self.checkpoints_path]

    def delete(self) -> None:
        """Delete only the files of a run; other files in the folder stay, and so do those behind a link.

        Raises:
            UserError: a path of the run is a link, or cannot be removed.
        """
        self._refuse_links()
        folders = (self.logs_path, self.checkpoints_path)
        written = [path for path in self.owned() if path not in (self.config_path, *folders)]
        written += [*self.logs_path.glob("rank_*.log"), *(folder for _, folder in self.checkpoint_folders())]
        # The configuration and the folder of checkpoints go last: until then the folder is recognised as a run.
        for path in [*written, self.config_path]:
            try:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            except OSError as error:
                raise UserError(
                    f"{path} cannot be removed ({error.strerror}): close the programs that have it open, such as a "
                    "dashboard of this run, or choose another folder",
                    setting="output_dir",
                ) from error
        for folder in folders:
            with suppress(OSError):  # it is missing, or holds files of others
                folder.rmdir()
