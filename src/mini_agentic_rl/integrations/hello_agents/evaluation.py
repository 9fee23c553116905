"""Measuring a model by a reward function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ...algorithm import Measure
from ...commands import check_model
from ...errors import UserError
from ...metrics import ConsoleLogger, MetricsLogger
from ...trainer import Trainer, accuracy_row
from .datasets import create_rl_dataset
from .models import outside_of_loops
from .prompt_agent import PromptAgent, RewardFunction
from .rewards import create_accuracy_reward

_N_RUNNERS = 128


def evaluate_model(
    model_name: str = "embedded",
    dataset: Sequence[Mapping[str, Any]] | None = None,
    reward_fn: RewardFunction | None = None,
    *,
    split: str = "test",
    max_samples: int | None = 100,
    max_new_tokens: int = 512,
    seed: int = 42,
    logger: MetricsLogger | None = None,
) -> dict[str, Any]:
    """Ask the model each prompt once, always taking the likeliest token, and score what it says.

    Args:
        model_name: "embedded", a Hub id, or the folder of a model or of a training.
        dataset: rows with a `prompt`; None takes math problems.
        reward_fn: None takes `create_accuracy_reward()`.
        split, max_samples: which math problems, where no `dataset` is given; of a dataset the first `max_samples`.
        max_new_tokens: bound of an answer.
        seed: of the sampling.
        logger: where progress goes; None shows it on standard error.

    Returns:
        `average_reward`, `accuracy` (the share of rewards of 1 or more, with its 95 % interval), `count`, `failed`
        (rollouts that gave nothing, by reason), `seconds`.

    Raises:
        UserError: the model or the data set cannot be had, or there is nothing to measure on.
    """
    check_model(model_name, "auto")
    rows = list(create_rl_dataset(max_samples, split) if dataset is None else dataset)[:max_samples]
    if not rows:
        raise UserError("dataset: there are no rows to measure on")
    algorithm = Measure(model_name, max_new_tokens=max_new_tokens, seed=seed)
    agent = PromptAgent(create_accuracy_reward() if reward_fn is None else reward_fn)
    with logger or ConsoleLogger() as out:
        trainer = Trainer(algorithm=algorithm, n_runners=_N_RUNNERS, logger=out)
        outside_of_loops(lambda: trainer.fit(agent, None, val_dataset=rows))
    found = algorithm.evaluation
    if found is None:
        raise UserError("the evaluation was stopped before it ended")
    row = accuracy_row("accuracy", sum(found.correct), len(found.rollouts))
    return {
        "model": model_name,
        "count": len(rows),
        "average_reward": sum(found.rewards) / len(found.rewards),
        "accuracy": row["accuracy"],
        "interval": [row["low"], row["high"]],
        "failed": Counter(one.unscored for one in found.rollouts if one.unscored is not None),
        "seconds": algorithm.seconds,
    }
