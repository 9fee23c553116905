"""Steps that leave the weights as they are: a person who waits for a run to learn is told, and what to change."""

from __future__ import annotations

from collections.abc import Mapping

_MANY = 0.5
"""The share of rollouts that end at the length bound from which on this is worth a word."""


class IdleSteps:
    """Counts the steps that taught nothing because the rollouts of each task had the same reward."""

    def __init__(self) -> None:
        self.idle = 0
        self.steps = 0

    def after_step(self, figures: Mapping[str, float]) -> str | None:
        """What to tell after a step: the first that teaches nothing says why."""
        self.steps += 1
        reward = figures.get("reward/mean")  # without it every rollout failed, and the log said why
        if reward is None or any(name.split("/")[-1] == "loss" for name in figures):
            return None
        self.idle += 1
        if self.idle > 1:
            return None
        parts = [f"nothing to learn from: all rollouts of a task have the same reward ({reward:.3g})"]
        if figures.get("rollout/truncated", 0.0) >= _MANY:
            parts.append(f"{figures['rollout/truncated']:.0%} of them ended at max_new_tokens")
        return "; ".join(parts)

    def at_the_end(self) -> str | None:
        """What to tell after the last step."""
        if self.idle == 0:
            return None
        return (
            f"{self.idle} of {self.steps} steps had nothing to learn from: imitate first (sft_examples), take easier "
            "tasks, or raise samples_per_prompt or max_new_tokens"
        )
