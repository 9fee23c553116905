"""`VERL`: Mini-GRPO or Mini-PPO under a configuration that was written for verl."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ...algorithm import GRPOSettings, MiniGRPO, PPOSettings
from ...algorithm.loop.objective import Objective
from ...algorithm.ppo.mini_ppo import policy_steps, ppo_objective
from ...errors import UserError
from ...policy import LearnerSettings, LoraSettings, Policy
from ...types import Dataset
from .plan import Plan, translate

logger = logging.getLogger(__name__)


class VERL(MiniGRPO):
    """`MiniGRPO` with the settings that a verl configuration asks for; with `algorithm.adv_estimator=gae` it learns as
    `MiniPPO` does.

    A key that is left out keeps the default of these, not verl's; without `model.lora_rank` that is an adapter of low
    rank, and 0 trains every weight. Keys that are not honoured are named in one warning.

    Args:
        config: nested mappings as in verl's YAML, dotted keys, or both; an OmegaConf `DictConfig` is one. None takes
            Mini-GRPO's defaults.
        **options: arguments of `MiniGRPO`; they win over the configuration.

    Raises:
        UserError: a value that would change what is learned cannot be honoured; the message names its key.
    """

    settings: Any  # a `PPOSettings` where the configuration asks for a critic
    settings_class: Any

    def __init__(self, config: Mapping[Any, Any] | None = None, **options: Any) -> None:
        self.config = config
        self.plan: Plan = translate(config or {})
        self._batch = "tasks_per_step" if "tasks_per_step" in options else self.plan.sources.get("grpo.tasks_per_step")
        """The name under which somebody has set the number of tasks of a step; None where nobody has."""
        chosen = _arguments(self.plan) | options
        if self.plan.has_critic:
            self.settings_class = PPOSettings
            if chosen.get("backend", "native") != "native":
                raise UserError(
                    f"algorithm.adv_estimator=gae cannot be honoured with backend={chosen['backend']!r}: "
                    "PPO has the native one alone"
                )
        if "total_steps" in options:
            chosen.setdefault("total_epochs", None)
        super().__init__(**chosen)
        if self.plan.warning is not None:
            logger.warning("%s", self.plan.warning)

    def objective(self, policy: Policy, learner: LearnerSettings) -> Objective:
        if not isinstance(self.settings, PPOSettings):
            return super().objective(policy, learner)
        counted = not self.learner_settings.total_steps
        return ppo_objective(policy, learner, self.settings, steps_are_passes=counted)

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """The loop of `MiniGRPO`, with epochs counted on `train_dataset`.

        Raises:
            UserError: `data.train_batch_size` is more than there are tasks.
            ValueError: there is nothing to train on.
            PolicyError: the model cannot be had.
        """
        if train_dataset is not None and len(train_dataset) > 0:
            self.settings, self.learner_settings = self._counted(len(train_dataset))
        await super().run(train_dataset, val_dataset)

    def _counted(self, tasks: int) -> tuple[GRPOSettings, LearnerSettings]:
        """The settings with their steps counted: as in verl, an epoch holds whole batches only."""
        settings, learner = self.settings, self.learner_settings
        if settings.total_epochs is not None:
            if settings.tasks_per_step > tasks:
                if self._batch is not None:
                    raise UserError(f"{self._batch}={settings.tasks_per_step} is more than the {tasks} tasks there are")
                settings = settings.model_copy(update={"tasks_per_step": tasks})  # nobody has asked for so many
            per_epoch = tasks // settings.tasks_per_step
            steps = settings.total_epochs * per_epoch
            settings = settings.model_copy(update={"total_steps": steps, "total_epochs": None})
        if self.plan.warmup_ratio is not None:
            steps = settings.total_steps * settings.epochs_per_batch
            if isinstance(settings, PPOSettings):
                steps = policy_steps(steps, settings)
            learner = learner.model_copy(update={"warmup_steps": int(self.plan.warmup_ratio * steps)})
        return settings, learner


def _arguments(planned: Plan) -> dict[str, Any]:
    """Keyword arguments of `MiniGRPO`."""
    arguments: dict[str, Any] = {}
    if planned.model is not None:
        arguments["model"] = planned.model
    if planned.tokenizer is not None:
        arguments["tokenizer"] = planned.tokenizer
    kind = PPOSettings if planned.has_critic else GRPOSettings
    arguments["settings"] = _valid(kind, "grpo", planned.grpo, planned.sources)
    arguments["learner"] = _valid(LearnerSettings, "learner", planned.learner, planned.sources)
    arguments["lora"] = None if planned.lora is None else _valid(LoraSettings, "lora", planned.lora, planned.sources)
    if planned.load:
        arguments["load_options"] = dict(planned.load)
    return arguments


def _valid(kind: Any, room: str, values: Mapping[str, Any], sources: Mapping[str, str]) -> Any:
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if not first["loc"]:
            raise UserError(f"the configuration cannot be honoured: {first['msg']}") from None
        name = str(first["loc"][0])
        key = sources.get(f"{room}.{name}", name)
        raise UserError(f"{key}={values.get(name)!r} cannot be honoured: {first['msg']}") from None
