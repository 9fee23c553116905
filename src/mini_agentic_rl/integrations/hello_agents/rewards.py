"""Rewards under the names of HelloAgents; they are computed by `mini_agentic_rl.rewards`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import UserError
from ...rewards import (
    AccuracyReward,
    FormatReward,
    Reward,
    RewardFunction,
    check_tolerance,
    count_steps,
    extract_answer,
    normalise_answer,
    same_answer,
    samples_of,
)

MAX_STEPS = 5
"""Most steps that earn a bonus."""

REWARD_TYPES: Mapping[str, str] = {
    "accuracy": "1 for the right answer, else 0",
    "format": 'the share of the required form that a reply has: one last line "Answer: …"',
    "length_penalty": "accuracy, less penalty_weight for each character beyond max_length",
    "step": f'accuracy, plus step_bonus for each marked step ("Step 1", "2.") of a right reply, up to {MAX_STEPS}',
}
"""Descriptions of the rewards, by their names."""


class MathRewardFunction(AccuracyReward):
    """1 for the right answer, else 0. Subclass it and override `__call__` for a reward of your own.

    Args:
        tolerance: largest distance of a number from the right one.

    Raises:
        ToleranceError: the tolerance is no number, or negative.
    """

    def __init__(self, tolerance: float = 1e-4) -> None:
        check_tolerance(tolerance, "tolerance")
        super().__init__(rel_tol=0.0, abs_tol=tolerance, name="math")
        self.tolerance = tolerance

    def extract_answer(self, text: str) -> str | None:
        """Return the final answer in a reply; None if it has none."""
        return extract_answer(text)

    def normalize_answer(self, answer: str) -> str:
        """Return the normal form of an answer; as `normalise_answer`."""
        return normalise_answer(answer)

    def compare_answers(self, predicted: str, truth: str) -> bool:
        """Return True if two answers are equal, numbers within the tolerance. An empty answer equals none."""
        if not str(predicted).strip() or not str(truth).strip():
            return False
        return same_answer(predicted, truth, rel_tol=0.0, abs_tol=self.tolerance)


class AdjustedReward(Reward):
    """The reward of another function, adjusted by a property of the reply if it is above 0.

    Args:
        base: the other function.
        adjust: (base reward, reply) → reward.
        name: name in logs and metrics.
    """

    def __init__(self, base: RewardFunction, adjust: Callable[[float, str], float], name: str) -> None:
        super().__init__(name)
        self._base = base
        self._adjust = adjust

    def __call__(
        self, completions: Sequence[Any], prompts: Sequence[Any] | None = None, **columns: Any
    ) -> list[float | None]:
        """Return a reward for each completion; None if the base function returns none.

        Raises:
            Exception: whatever the other function raises.
        """
        rewards = self._base(completions=completions, prompts=prompts, **columns)
        samples = samples_of(completions, prompts, columns)
        return [
            self._adjust(reward, sample.written) if reward is not None and reward > 0 else reward
            for reward, sample in zip(rewards, samples, strict=True)
        ]


def create_accuracy_reward(tolerance: float = 1e-4) -> MathRewardFunction:
    """Return a reward of 1 for the right answer, else 0; `tolerance` is the largest distance of a number from it."""
    return MathRewardFunction(tolerance)


def create_length_penalty_reward(
    base_reward_fn: RewardFunction | None = None, max_length: int = 1024, penalty_weight: float = 0.001
) -> AdjustedReward:
    """Return a reward that subtracts `penalty_weight` for each character beyond `max_length`, down to 0.

    `base_reward_fn` defaults to `create_accuracy_reward()`."""

    def adjust(reward: float, text: str) -> float:
        return max(0.0, reward - penalty_weight * max(0, len(text) - max_length))

    return AdjustedReward(base_reward_fn or create_accuracy_reward(), adjust, "length_penalty")


def create_step_reward(base_reward_fn: RewardFunction | None = None, step_bonus: float = 0.1) -> AdjustedReward:
    """Return a reward that adds `step_bonus` for each marked step ("Step 1", "2.", "第三步"), up to `MAX_STEPS`.

    Rewards of 0 stay 0. `base_reward_fn` defaults to `create_accuracy_reward()`."""

    def adjust(reward: float, text: str) -> float:
        return reward + step_bonus * min(count_steps(text), MAX_STEPS)

    return AdjustedReward(base_reward_fn or create_accuracy_reward(), adjust, "step")


def create_reward_function(
    reward_type: str = "accuracy",
    *,
    base_reward_fn: RewardFunction | None = None,
    tolerance: float = 1e-4,
    max_length: int = 1024,
    penalty_weight: float = 0.001,
    step_bonus: float = 0.1,
) -> Reward:
    """Return a reward by its name in `REWARD_TYPES`; the other arguments are those of its function.

    Raises:
        UserError: there is no such reward.
    """
    if reward_type == "accuracy":
        return create_accuracy_reward(tolerance)
    if reward_type == "format":
        return FormatReward()
    base = base_reward_fn or create_accuracy_reward(tolerance)
    if reward_type == "length_penalty":
        return create_length_penalty_reward(base, max_length, penalty_weight)
    if reward_type == "step":
        return create_step_reward(base, step_bonus)
    raise UserError(f"reward_type {reward_type!r} is unknown: choose {', '.join(REWARD_TYPES)}")


def evaluate_rewards(
    completions: Sequence[Any], ground_truths: Sequence[Any], reward_fn: RewardFunction | None = None
) -> dict[str, Any]:
    """Score replies to tasks whose right answers are known.

    Returns:
        `mean_reward`, `min_reward`, `max_reward`, `accuracy` (the share of rewards of 1 or more), `num_samples`,
        `without_reward` (how many got none; they are in no figure), `rewards`.

    Raises:
        UserError: there are not as many right answers as replies.
    """
    if len(completions) != len(ground_truths):
        raise UserError(f"ground_truths has {len(ground_truths)} entries for {len(completions)} completions")
    function = reward_fn or create_accuracy_reward()
    rewards = list(function(completions=list(completions), ground_truth=list(ground_truths)))
    scores = [float(reward) for reward in rewards if reward is not None]
    return {
        "mean_reward": sum(scores) / len(scores) if scores else None,
        "min_reward": min(scores, default=None),
        "max_reward": max(scores, default=None),
        "accuracy": sum(reward >= 1 for reward in scores) / len(scores) if scores else None,
        "num_samples": len(rewards),
        "without_reward": len(rewards) - len(scores),
        "rewards": rewards,
    }
