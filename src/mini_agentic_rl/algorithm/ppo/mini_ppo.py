"""Mini-PPO: proximal policy optimization (Schulman et al. 2017) of the agent that a person already has.

    measure -> warm up (if asked) -> measure -> [draw tasks -> rollouts -> values and advantages -> steps]* -> measure

All but the update is Mini-GRPO's.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ...policy import LearnerSettings, Policy, PolicyError, ValueSettings
from ..grpo import MiniGRPO
from ..grpo.objective import Objective
from ..grpo.settings import GRPOSettings
from .settings import PPOSettings
from .update import PPOObjective


class MiniPPO(MiniGRPO):
    """Trains the model that it serves, with a critic on the same weights: a value head that reads the last hidden
    state. A rollout is judged by what the critic expected, not by others of its task, so one of each is enough; tokens
    of one rollout have advantages of their own, over all of its calls.

    Takes what `MiniGRPO` takes; `settings` is a `PPOSettings`. Where several adapters are trained, each has a critic.
    The critics are kept in checkpoints; the result of a run is the adapter alone.
    """

    settings_class: ClassVar[type[GRPOSettings]] = PPOSettings
    settings: PPOSettings

    def __init__(self, model: Any = "embedded", tokenizer: Any | None = None, **options: Any) -> None:
        if options.get("backend", "native") != "native":
            raise PolicyError(f"backend={options['backend']!r} is MiniGRPO's: PPO has the native one alone")
        super().__init__(model, tokenizer, **options)

    def objective(self, policy: Policy, learner: LearnerSettings) -> Objective:
        settings = self.settings
        value = ValueSettings(learning_rate=settings.value_learning_rate, trains_adapter=settings.value_trains_adapter)
        if learner.total_steps and not self.learner_settings.total_steps:  # the loop counted one step for each pass
            passes = learner.total_steps - settings.value_warmup_steps * settings.epochs_per_batch
            learner = learner.model_copy(update={"total_steps": max(1, passes) * settings.minibatches})
        learners = {adapter: policy.value_learner(learner, value, adapter) for adapter in policy.model.adapters}
        return PPOObjective(learners, settings)
