"""Mini-PPO: proximal policy optimization (Schulman et al. 2017) of the agent that a person already has.

draw tasks -> rollouts -> values and advantages -> steps of the policy and of the critic
"""

from __future__ import annotations

from typing import Any

from ...policy import LearnerSettings, Policy, PolicyError, ValueSettings
from ..loop.objective import Objective
from ..loop.reinforcement import ReinforcementLearning
from ..settings import PPOSettings
from .objective import PPOObjective


class MiniPPO(ReinforcementLearning[PPOSettings]):
    """Trains the model that it serves, with a critic on the same weights: a value head that reads the last hidden
    state. A rollout is judged by what the critic expected, not by others of its task, so one of each is enough; tokens
    of one rollout have advantages of their own, over all of its calls.

    Takes what `ReinforcementLearning` takes; `settings` is a `PPOSettings`. Where several adapters are trained, each
    has a critic. The critics are kept in checkpoints; the result of a run is the adapter alone.
    """

    settings_class = PPOSettings

    def __init__(self, model: Any = "embedded", tokenizer: Any | None = None, **options: Any) -> None:
        backend = options.pop("backend", "native")
        if backend != "native":
            raise PolicyError(f"{backend!r} is MiniGRPO's: PPO has the native one alone", setting="backend")
        super().__init__(model, tokenizer, **options)

    def objective(self, policy: Policy, learner: LearnerSettings) -> Objective:
        """Return an optimizer and a critic for each adapter, and the losses of `settings`."""
        counted = not self.learner_settings.total_steps
        return ppo_objective(policy, learner, self.settings, steps_are_passes=counted)


def ppo_objective(
    policy: Policy, learner: LearnerSettings, settings: PPOSettings, *, steps_are_passes: bool
) -> PPOObjective:
    """Return what PPO learns with: an optimizer and a critic for each adapter. On the torch thread.

    Args:
        steps_are_passes: the loop counted `learner.total_steps`, one for each pass over a batch.
    """
    value = ValueSettings(learning_rate=settings.value_learning_rate, trains_adapter=settings.value_trains_adapter)
    if learner.total_steps and steps_are_passes:
        learner = learner.model_copy(update={"total_steps": policy_steps(learner.total_steps, settings)})
    learners = {adapter: policy.value_learner(learner, value, adapter) for adapter in policy.model.adapters}
    return PPOObjective(learners, settings)


def policy_steps(passes: int, settings: PPOSettings) -> int:
    """Return the optimizer steps of the policy in so many passes over batches, but for those of the critic alone."""
    return max(1, passes - settings.value_warmup_steps * settings.epochs_per_batch) * settings.minibatches
