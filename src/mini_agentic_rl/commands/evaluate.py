"""`eval`: measure a model or an adapter, without training."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from pydantic import Field

from ..algorithm import RolloutSettings, answer_rows
from ..config import COMMANDS_AT_ONCE, HarnessSettings, JsonSettings
from ..datasets import is_data_file
from ..environments import tokens_of_call
from ..errors import UserError
from ..files import make_folder_of, write_json
from ..metrics import ConsoleLogger
from ..policy import AdaptedModelSettings
from ..processes import peak_memory_bytes
from ..trainer import RunnerSettings, TraceExportSettings, accuracy_rows, check_rows, transcripts, versions
from .tables import show, show_result
from .tasks import TaskSettings, load_agent, matching_tasks, trained_as
from .train_config import config_of_agent

EVAL_SHORT_HELP: Final[Sequence[str]] = (
    *("model", "adapter", "device", "env", "agent", "dataset", "difficulty", "split", "size", "agent_command"),
    *("samples", "temperature", "max_new_tokens", "n_runners", "seed", "output", "json_output"),
)
"""Settings that `eval --help` shows."""


class EvalSettings(RunnerSettings, JsonSettings):
    """The settings of `eval`."""

    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        "Model": ("load.*", "rollouts.tool_format", "rollouts.thinking"),
        "Tasks": ("tasks.*", "split", "size"),
        "Agent that is a command": ("harness.*",),
        "Sampling": (
            "samples",
            "temperature",
            "rollouts.max_new_tokens",
            "n_runners",
            "rollouts.gateway_port",
            "rollouts.gateway_host",
            "rollouts.gateway_url",
            "rollouts.rollout_timeout",
        ),
        "Run": ("rollouts.seed", "output", "export.*", "json_output"),
    }
    helps: ClassVar[Mapping[str, str]] = {
        "rollouts.rollout_timeout": "Wall-clock limit of a rollout in seconds; beyond it the rollout counts as wrong.",
        "rollouts.seed": "Seed of tasks and sampling.",
    }

    split: Literal["train", "val", "test", "transfer"] = "test"
    """Split of the tasks; `test` of a single file is the whole file. `transfer` has kinds of tasks that are never
    trained on: stories and operations of arithmetic, wordings of a task family."""
    size: int = Field(default=200, ge=1)
    """At most this many problems."""
    samples: int = Field(default=1, ge=1)
    """Tries at each problem; k tries give pass@1 to pass@k, and the accuracy of the majority answer."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """Sampling temperature; by default 0 for one try and 1 for several."""
    output: Path | None = None
    """JSON file for the result with the answer of every rollout, for `compare`."""

    load: AdaptedModelSettings = AdaptedModelSettings()
    tasks: TaskSettings = TaskSettings()
    harness: HarnessSettings = HarnessSettings()
    rollouts: RolloutSettings = RolloutSettings()
    export: TraceExportSettings = TraceExportSettings()

    def completed(self) -> EvalSettings:
        """Return the settings with the tasks of the agent, or of the run that trained the adapter, unless others are
        given."""
        trained = trained_as(self.load)
        given = self.tasks if trained is None else trained.tasks_for(self.tasks, self.harness)
        config_class = config_of_agent(given.agent)
        if config_class is not None:
            tasks_of_agent = config_class().tasks.model_dump(exclude={"agent"})
            return self.changed(tasks={**tasks_of_agent, **given.model_dump(exclude_unset=True)})
        tasks = matching_tasks(given, is_command=bool(self.harness.agent_command))
        changes: dict[str, Any] = {"tasks": tasks}
        if tasks != given and "max_new_tokens" not in self.rollouts.model_fields_set:
            changes["rollouts"] = {"max_new_tokens": tokens_of_call(tasks.agent, tasks.dataset)}
        return self.changed(**changes)


def evaluate(settings: EvalSettings) -> None:
    """Measure a model or an adapter on held-out problems. Never trains."""
    summary = eval_job(settings)
    written = [settings.output] if settings.output else []
    show(settings, summary, partial(show_result, written=written))


def eval_job(settings: EvalSettings) -> dict[str, Any]:
    """Measure, and return pass@1 and, with several samples, pass@k and the accuracy of the majority answer.

    Raises:
        UserError: a setting is invalid.
    """
    from ..algorithm import Measure
    from ..environments import load_tasks
    from ..trainer import Trainer

    if settings.output is not None:
        make_folder_of(settings.output, setting="output")
    trained, given = trained_as(settings.load), settings.tasks
    settings = settings.completed()
    written = (settings.output, None if trained is None else trained.folder)
    recipe = load_agent(settings.tasks, settings.harness, written)
    load, rollouts, dataset = settings.load, settings.rollouts, settings.tasks.dataset
    # A file given by its name is measured whole; of the file that a run was trained on only the held-out tasks.
    is_whole = "dataset" in given.model_fields_set and is_data_file(Path(dataset)) and settings.split == "test"
    split = "all" if is_whole else settings.split
    tasks = load_tasks(dataset, split, settings.size, rollouts.seed, settings.tasks.difficulty)
    if len(tasks) == 0:
        raise UserError(f"{dataset} has no tasks in the split {settings.split}", setting="dataset")
    temperature = settings.temperature
    if temperature is None:
        temperature = 0.0 if settings.samples == 1 else 1.0
    algorithm = Measure(
        load.model,
        samples=settings.samples,
        temperature=temperature,
        **rollouts.model_dump(),
        load_options=load.model_dump(exclude={"model"}),
    )
    n_runners = settings.n_runners
    if settings.harness.agent_command and "n_runners" not in settings.model_fields_set:
        n_runners = COMMANDS_AT_ONCE
    with ConsoleLogger() as logger:
        trainer = Trainer(
            algorithm=algorithm,
            hooks=recipe.hooks,
            n_runners=min(n_runners, max(1, len(tasks) * settings.samples)),
            logger=logger,
            otlp=settings.export,
        )
        trainer.fit(recipe.agent, None, val_dataset=tasks)
    if algorithm.evaluation is None:
        raise UserError("the evaluation was stopped before it ended")
    answers = answer_rows(algorithm.evaluation)
    result = {
        "accuracy": accuracy_rows(answers),
        "checks": check_rows(answers),
        "failed": Counter(row.unscored for row in algorithm.evaluation.rollouts if row.unscored is not None),
        "seconds": algorithm.seconds,
        "kernels": algorithm.kernels,
        "peak_memory_bytes": peak_memory_bytes(),
        "versions": versions(),
        "seed": rollouts.seed,
        "model": load.model,
        "adapter": None if load.adapter is None else str(load.adapter),
        "dataset": dataset,
    }
    if settings.output is not None:
        rollouts_shown = transcripts(algorithm.evaluation, len(algorithm.evaluation.rollouts) * 2)
        whole = {**result, "answers": answers, "rollouts": rollouts_shown}
        write_json(settings.output, json.loads(json.dumps(whole)), private=True)
    return result
