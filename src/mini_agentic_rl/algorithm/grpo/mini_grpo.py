"""Mini-GRPO: group relative policy optimization (Shao et al. 2024, arXiv:2402.03300) of the agent that a person has.

draw tasks -> G rollouts each -> advantages within the group -> one step
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from ...gateway import ServedPolicy
from ...plugins import load_part
from ...policy import LearnerSettings, Policy, PolicyError, launched
from ..loop.objective import Objective
from ..loop.reinforcement import ReinforcementLearning
from ..settings import BASE_TEACHER, GRPOSettings
from .imitation import DemonstrationSource
from .objective import GRPOObjective
from .teachers import make_teachers, teacher_adapter

Backend = Literal["native", "trl"]


class MiniGRPO(ReinforcementLearning[GRPOSettings]):
    """Trains the model that it serves, by comparing the rollouts of a task with each other.

    Takes what `ReinforcementLearning` takes; `settings` is a `GRPOSettings`. Single settings may be given by name
    (`total_steps=10`), a published variant as `preset="dapo"`.

    Args:
        model: "embedded", a folder, a hub id, or a loaded Hugging Face model.
        tokenizer: its tokenizer; None takes the one beside the model.
        backend: what turns rewards into new weights: "native", or TRL's GRPOTrainer ("trl") in the same loop; see
            `mini_agentic_rl.integrations.trl.backend`.
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
        if isinstance(self.settings, GRPOSettings):  # a verl configuration may ask for PPO
            self._check_sources()
        if backend == "trl":
            if launched() is not None:
                raise PolicyError("'trl' learns in one process: start it without torchrun", setting="backend")
            backend_of_trl = load_part("trl_backend", setting="backend")
            backend_of_trl.check_backend(
                self.settings, adapters=self._adapters or (), fixed_adapters=self._fixed_adapters or ()
            )

    @property
    def configuration(self) -> Mapping[str, Any]:
        return {**super().configuration, "backend": self._backend}

    def objective(self, policy: Policy, learner: LearnerSettings) -> Objective:
        """Return an optimizer for each adapter, and the loss of `settings`."""
        learners = {adapter: policy.learner(learner, adapter) for adapter in policy.model.adapters}
        if self._backend == "trl" and self.served is not None:
            made: Objective = load_part("trl_backend", setting="backend").make_objective(
                policy.model, learners, self.served.tokenizer, self.settings
            )
            return made
        if self.served is None:
            return GRPOObjective(learners, self.settings)
        return GRPOObjective(
            learners,
            self.settings,
            teachers=make_teachers(self.settings, self.served, learners),
            demonstrations=self._demonstrations(self.served),
        )

    def _check_sources(self) -> None:
        """Check that there is what the settings want to learn from, and load the adapter of a teacher.

        Raises:
            PolicyError: there is none.
        """
        settings, trained = self.settings, self._adapters or {}
        if settings.teacher == BASE_TEACHER and self._lora is None:
            raise PolicyError(
                "needs LoRA: under full training no weights without an adapter are left", setting="teacher"
            )
        if settings.sft_coef > 0 and not self.warm_starts:
            raise PolicyError(
                "needs demonstrations, and these tasks have none (in Python, give `warm_start`)", setting="sft_coef"
            )
        if settings.separate_rewards and len(trained) > 1:
            raise PolicyError("of several adapters each has one reward, that of its name", setting="separate_rewards")
        own = {**trained, **(self._fixed_adapters or {})}
        if self._lora is not None:
            self._fixed_adapters = {
                **(self._fixed_adapters or {}),
                **teacher_adapter(settings, known=own),
            } or self._fixed_adapters

    def _demonstrations(self, served: ServedPolicy) -> dict[str, DemonstrationSource]:
        """Return what each adapter imitates beside its rollouts."""
        settings, dataset = self.settings, self.train_dataset
        if settings.sft_coef == 0 or served.server is None or dataset is None:
            return {}
        return {
            adapter: DemonstrationSource(
                start, dataset, served.server.renderer, count=settings.sft_per_step, seed=settings.seed
            )
            for adapter, start in self.warm_starts.items()
        }
