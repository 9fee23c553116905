"""Mini-PPO: proximal policy optimization (Schulman et al. 2017) of the agent that a person already has.

    measure -> warm up (if asked) -> measure -> [draw tasks -> rollouts -> values and advantages -> steps]* -> measure

All but the update is Mini-GRPO's.
"""

from __future__ import annotations

from typing import Any

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

    settings_class: type[GRPOSettings] = PPOSettings
    settings: PPOSettings

    def __init__(self, model: Any = "embedded", tokenizer: Any | None = None, **options: Any) -> None:
        if options.get("backend", "native") != "native":
            raise PolicyError(f"backend={options['backend']!r} is MiniGRPO's: PPO has the native one alone")
        super().__init__(model, tokenizer, **options)

    def objective(self, policy: Policy, learner: LearnerSettings) -> Objective:
        counted = not self.learner_settings.total_steps
        return ppo_objective(policy, learner, self.settings, steps_are_passes=counted)


def ppo_objective(
    policy: Policy, learner: LearnerSettings, settings: PPOSettings, *, steps_are_passes: bool
) -> PPOObjective:
    """What PPO learns with: an optimizer and a critic for each adapter. On the torch thread.

    Args:
        steps_are_passes: the loop counted `learner.total_steps`, one for each pass over a batch.
    """
    value = ValueSettings(learning_rate=settings.value_learning_rate, trains_adapter=settings.value_trains_adapter)
    if learner.total_steps and steps_are_passes:
        learner = learner.model_copy(update={"total_steps": policy_steps(learner.total_steps, settings)})
    learners = {adapter: policy.value_learner(learner, value, adapter) for adapter in policy.model.adapters}
    return PPOObjective(learners, settings)


def policy_steps(passes: int, settings: PPOSettings) -> int:
    """The optimizer steps of the policy in so many passes over batches, but for those in which the critic is alone."""
    return max(1, passes - settings.value_warmup_steps * settings.epochs_per_batch) * settings.minibatches
