"""`eval`: measure a model or an adapter. Never trains."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from pydantic import Field

from ..algorithm import RolloutSettings, answer_rows
from ..config import COMMANDS_AT_ONCE, HarnessSettings, JsonSettings
from ..datasets import is_data_file
from ..environments import tokens_of_call
from ..errors import UserError
from ..files import write_json
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
    """The settings of `eval`, which never trains."""

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
        "rollouts.rollout_timeout": "Seconds after which a rollout is ended and counts as wrong.",
        "rollouts.seed": "Seed of tasks and sampling.",
    }

    split: Literal["train", "val", "test", "transfer"] = "test"
    """Part of the tasks; of a single file, `test` is the whole. `transfer` has what is never trained on: stories
    and operations of arithmetic, wordings and the like of a family of tasks."""
    size: int = Field(default=200, ge=1)
    """Number of problems at most."""
    samples: int = Field(default=1, ge=1)
    """Tries at each problem; with k tries pass@1 to pass@k are reported, and the accuracy of the majority's answer."""
    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature; by default 0 for one try and 1 for several."""
    output: Path | None = None
    """JSON file for the result, every rollout's answer included; `compare` reads it."""

    load: AdaptedModelSettings = AdaptedModelSettings()
    tasks: TaskSettings = TaskSettings()
    harness: HarnessSettings = HarnessSettings()
    rollouts: RolloutSettings = RolloutSettings()
    export: TraceExportSettings = TraceExportSettings()


def evaluate(settings: EvalSettings) -> None:
    """Measure a model or an adapter on held-out problems. Never trains."""
    summary = eval_job(settings)
    written = [settings.output] if settings.output else []
    show(settings, summary, lambda console: show_result(console, summary, written=written))


def eval_job(settings: EvalSettings) -> dict[str, Any]:
    """Run the job and return its result: pass@1 and, with several samples, pass@k and the majority's accuracy.

    Raises:
        UserError: a setting cannot work.
    """
    from ..algorithm import Measure
    from ..environments import load_tasks
    from ..trainer import Trainer

    trained = trained_as(settings.load)
    given = settings.tasks
    if trained is not None:
        tasks_of_run = trained.tasks_for(given, settings.harness).model_dump(exclude_unset=True)
        settings = settings.changed(tasks=tasks_of_run)
    settings = _with_defaults_of_agent(settings)
    written = (settings.output, None if trained is None else trained.folder)
    recipe = load_agent(settings.tasks, settings.harness, written)
    load, asked, rollouts = settings.load, settings.tasks, settings.rollouts
    # A file that somebody names is measured whole; one that the run was trained on only where it was held out.
    is_whole = "dataset" in given.model_fields_set and is_data_file(Path(asked.dataset)) and settings.split == "test"
    split = "all" if is_whole else settings.split
    tasks = load_tasks(asked.dataset, split, settings.size, rollouts.seed, asked.difficulty)
    if len(tasks) == 0:
        raise UserError(f"{asked.dataset} has no tasks in the split {settings.split}", setting="dataset")
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
    with ConsoleLogger() as logger:
        trainer = Trainer(
            algorithm=algorithm,
            hooks=recipe.hooks,
            n_runners=min(_runners(settings), max(1, len(tasks) * settings.samples)),
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
        "dataset": asked.dataset,
    }
    if settings.output is not None:
        shown = transcripts(algorithm.evaluation, len(algorithm.evaluation.rollouts) * 2)
        whole = {**result, "answers": answers, "rollouts": shown}
        write_json(settings.output, json.loads(json.dumps(whole)), private=True)
    return result


def _runners(settings: EvalSettings) -> int:
    """Return the number of rollouts at the same time; fewer where each is a program of its own."""
    is_open = settings.harness.agent_command and "n_runners" not in settings.model_fields_set
    return COMMANDS_AT_ONCE if is_open else settings.n_runners


def _with_defaults_of_agent(settings: EvalSettings) -> EvalSettings:
    """Return the settings with the tasks that the agent is trained on, where none were given.

    Raises:
        UserError: agent and data set do not belong together.
    """
    own_config = config_of_agent(settings.tasks.agent)
    if own_config is None:
        is_command = bool(settings.harness.agent_command)
        tasks = matching_tasks(settings.tasks, is_command=is_command)
        if tasks == settings.tasks:
            return settings
        changes: dict[str, Any] = {
            "tasks": tasks.model_dump(include={"dataset"} if is_command else {"agent", "dataset"})
        }
        if "max_new_tokens" not in settings.rollouts.model_fields_set:
            changes["rollouts"] = {"max_new_tokens": tokens_of_call(tasks.agent, tasks.dataset)}
        return settings.changed(**changes)
    usual = own_config().tasks.model_dump(exclude={"agent"})
    return settings.changed(tasks={**usual, **settings.tasks.model_dump(exclude_unset=True)})
