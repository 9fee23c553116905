"""`eval`: measures a model or an adapter. Never trains."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from ..algorithm import Evaluation, Measure, peak_memory_bytes
from ..atomic_files import write_json
from ..datasets import is_data_file
from ..errors import UserError
from ..metrics import ConsoleLogger
from ..recipes import load_recipe, load_tasks
from ..trainer import Trainer, accuracy_row, mean_pass_at_k, transcripts, versions
from .config import SqlTrainConfig
from .settings import EvalSettings


def eval_job(settings: EvalSettings) -> dict[str, Any]:
    """Run the job and return its result: pass@1 and, with several samples, pass@k.

    Raises:
        UserError: a setting cannot work.
    """
    recipe = load_recipe(settings.tasks.agent, settings.tasks.dataset)
    settings = _with_defaults_of_agent(settings)
    load, asked, rollouts = settings.load, settings.tasks, settings.rollouts
    split = "all" if is_data_file(Path(asked.dataset)) and settings.split == "test" else settings.split
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
        Trainer(algorithm=algorithm, hooks=recipe.hooks, n_runners=settings.n_runners, logger=logger).fit(
            recipe.agent, None, val_dataset=tasks
        )
    if algorithm.evaluation is None:
        raise UserError("the evaluation was stopped before it ended")
    result = {
        "accuracy": _rows(algorithm.evaluation),
        "failed": Counter(row.unscored for row in algorithm.evaluation.rollouts if row.unscored is not None),
        "seconds": algorithm.seconds,
        "peak_memory_bytes": peak_memory_bytes(),
        "versions": versions(),
        "seed": rollouts.seed,
        "model": load.model,
        "adapter": None if load.adapter is None else str(load.adapter),
        "dataset": asked.dataset,
    }
    if settings.output is not None:
        answers = transcripts(algorithm.evaluation, len(algorithm.evaluation.rollouts) * 2)
        write_json(settings.output, json.loads(json.dumps({**result, "rollouts": answers})), private=True)
    return result


def _with_defaults_of_agent(settings: EvalSettings) -> EvalSettings:
    """Return the settings with the tasks that the agent is trained on, where none were given."""
    if settings.tasks.agent != "sql":
        return settings
    usual = SqlTrainConfig().tasks.model_dump(exclude={"agent"})
    return settings.changed(tasks={**usual, **settings.tasks.model_dump(exclude_unset=True)})


def _rows(evaluation: Evaluation) -> list[dict[str, Any]]:
    """pass@1 over all rollouts, and pass@k by the unbiased estimator (Chen et al. 2021, equation 1)."""
    problems = len(evaluation.correct)
    rows: list[dict[str, Any]] = [dict(accuracy_row("pass@1", sum(evaluation.correct), len(evaluation.rollouts)))]
    outcomes = [(evaluation.samples, correct) for correct in evaluation.correct]
    k = 2
    while k <= evaluation.samples:
        rows.append(dict(accuracy_row(f"pass@{k}", mean_pass_at_k(outcomes, k) * problems, problems)))
        k *= 2
    return rows
