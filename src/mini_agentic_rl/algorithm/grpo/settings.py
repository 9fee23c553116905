"""The settings of Mini-GRPO. Reading them needs no torch."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from ...config import COMMAS
from ..loop.settings import LoopSettings

Distillation = Literal["sampled", "top_k"]
"""Ways to follow a teacher; see `distillation.py`."""

BASE_TEACHER: Final = "base"
"""`teacher` for the model without its adapter."""
SELF_TEACHER: Final = "self"
"""`teacher` for the policy itself, with more in its context."""


def is_address(teacher: str) -> bool:
    """Return True for a `teacher` behind the address of a server."""
    return teacher.startswith(("http://", "https://"))


class GRPOSettings(LoopSettings):
    """The loop: how much is sampled, how it is turned into a loss, how often it is measured; and what is learnt from
    besides rewards."""

    separate_rewards: Annotated[list[str], COMMAS] = Field(default=[])
    """Names of rewards that are compared each by itself and then summed, with commas between them (GDPO; Liu et al.
    2026); `all` takes every name that rollouts have. Without one their sum, or what the agent made of them, is
    compared."""
    separate_reward_weights: Annotated[list[float], COMMAS] = Field(default=[])
    """Weights of these rewards, in their order; by default all weigh alike."""
    reward_coef: float = Field(default=1.0, ge=0)
    """Weight of what rewards teach; 0 leaves a teacher and what is imitated alone."""
    echo_coef: float = Field(default=0.0, ge=0)
    """Weight of predicting what tools and users said in the rollouts (ECHO; Shrivastava et al. 2026, who take 0.05)."""
    sft_coef: float = Field(default=0.0, ge=0)
    """Weight of imitating demonstrations in each step, beside its rollouts."""
    sft_per_step: int = Field(default=4, ge=1)
    """Demonstrations of each optimizer step with `sft_coef`."""
    teacher: str | None = None
    """Teacher to distil from, token by token, in the policy's own rollouts: `base` (the model without its adapter),
    `self` (the policy with a solution and feedback in its context; SDPO), a model's id or folder, the folder of an
    adapter, or the address of a server that tells `prompt_logprobs`, as http://localhost:8000/v1."""
    teacher_model: str | None = None
    """Name that a teacher's server has for it; by default the policy's own. Its key is TEACHER_API_KEY."""
    teacher_coef: float = Field(default=1.0, gt=0)
    """Weight of what a teacher says."""
    distillation: Distillation = "sampled"
    """Follow a `teacher` by its word on the token that was sampled, or by its likeliest tokens in each state
    (`top_k`)."""
    teacher_top_k: int = Field(default=20, ge=0)
    """Number of these; 0 is the whole vocabulary, which a teacher that is here tells."""
    teacher_reward: float = 1.0
    """Least reward of a rollout that shows the others of its group how it is done, with `teacher=self`."""

    @model_validator(mode="after")
    def _has_something_to_compare_with(self) -> Self:
        compares = self.baseline != "none" and self.reward_coef > 0
        if self.samples_per_prompt == 1 and compares:
            raise ValueError(
                f"`samples_per_prompt=1` leaves nothing to compare with under `baseline={self.baseline}`: set 2 or "
                "more, or `baseline=none`, as reinforce++ has it"
            )
        return self

    @model_validator(mode="after")
    def _compares_separate_rewards_once(self) -> Self:
        names, weights = self.separate_rewards, self.separate_reward_weights
        if weights and len(weights) != len(names):
            raise ValueError(f"{len(weights)} `separate_reward_weights` for {len(names)} `separate_rewards`")
        if not names:
            return self
        if self.credit not in ("broadcast", "last_call"):
            raise ValueError(f"`credit={self.credit}` takes one reward, and not `separate_rewards`")
        if self.normalize_advantage and self.advantage_normalization != "batch":
            raise ValueError(
                "`separate_rewards` are divided each by its own deviation: set `advantage_normalization=batch`, or "
                "`normalize_advantage=False`"
            )
        return self

    @model_validator(mode="after")
    def _asks_its_teacher_what_it_can_tell(self) -> Self:
        if self.teacher is None:
            if self.reward_coef == 0 and self.echo_coef == 0 and self.sft_coef == 0:
                raise ValueError("`reward_coef=0` leaves nothing to learn from: give a `teacher`, or what to imitate")
            return self
        if is_address(self.teacher) and self.temperature != 1:
            raise ValueError("a teacher behind an address tells log-probabilities of `temperature=1`")
        if is_address(self.teacher) and self.distillation == "top_k" and self.teacher_top_k == 0:
            raise ValueError("`teacher_top_k=0`, the whole vocabulary, needs a teacher that is here")
        if self.teacher == SELF_TEACHER and self.samples_per_prompt == 1:
            raise ValueError("`teacher=self` learns from the other rollouts of a task: set `samples_per_prompt` to 2")
        return self
