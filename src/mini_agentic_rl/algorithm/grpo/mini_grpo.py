"""Mini-GRPO: group relative policy optimization (Shao et al. 2024, arXiv:2402.03300) of the agent that a person has.

draw tasks -> G rollouts each -> advantages within the group -> one step
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from ...policy import LearnerSettings, Policy, PolicyError
from ..loop.objective import Objective
from ..loop.reinforcement import ReinforcementLearning
from .objective import GRPOObjective
from .settings import GRPOSettings

Backend = Literal["native", "trl"]


class MiniGRPO(ReinforcementLearning[GRPOSettings]):
    """Trains the model that it serves, by comparing the rollouts of a task with each other.

    Takes what `ReinforcementLearning` takes; `settings` is a `GRPOSettings`. Single settings may be given by name
    (`total_steps=10`), a published variant as `preset="dapo"`.

    Args:
        model: "embedded", a folder, a hub id, or a loaded Hugging Face model.
        tokenizer: its tokenizer; None takes the one beside the model.
        backend: what turns rewards into new weights: "native", or TRL's GRPOTrainer ("trl") in the same loop; see
            `mini_agentic_rl.algorithm.trl_grpo`.
        options: those of `ReinforcementLearning`, and settings by their names.

    Raises:
        pydantic.ValidationError: a setting is out of its range or has no such name.
        UserError: the backend "trl" cannot do what the settings ask for.
    """

    settings_class = GRPOSettings

    def __init__(
        self, model: Any = "embedded", tokenizer: Any | None = None, *, backend: Backend = "native", **options: Any
    ) -> None:
        super().__init__(model, tokenizer, **options)
        if backend not in get_args(Backend):
            raise PolicyError(f"must be 'native' or 'trl', not {backend!r}", setting="backend")
        self._backend = backend
        if backend == "trl":
            from ..trl_grpo import check_backend

            check_backend(self.settings, adapters=self._adapters or (), fixed_adapters=self._fixed_adapters or ())

    @property
    def configuration(self) -> Mapping[str, Any]:
        return {**super().configuration, "backend": self._backend}

    def objective(self, policy: Policy, learner: LearnerSettings) -> Objective:
        """Return an optimizer for each adapter, and the loss of `settings`."""
        learners = {adapter: policy.learner(learner, adapter) for adapter in policy.model.adapters}
        if self._backend == "trl" and self.served is not None:
            from ..trl_grpo.objective import TRLObjective

            return TRLObjective(policy.model, learners, self.served.tokenizer, self.settings)
        return GRPOObjective(learners, self.settings)
