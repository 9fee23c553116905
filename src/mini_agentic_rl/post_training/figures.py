"""TRL's names for its numbers, in the words that the rest of the project uses."""

from __future__ import annotations

from collections.abc import Mapping

from ..metrics.base import EVAL

_FIRST = "reward/margin"
"""What stands for the rewards of a method that trains on pairs."""
_NAMES = {
    "accuracy": "accuracy",
    "grad_norm": "gradient_norm",
    "kl": "kl",
    "logps/chosen": "logprob/chosen",
    "logps/rejected": "logprob/rejected",
    "margin": "reward/margin",
    "max_reward": "reward/max",
    "mean_reward": "reward/mean",
    "mean_token_accuracy": "accuracy/tokens",
    "min_reward": "reward/min",
    "rewards/accuracies": "accuracy",
    "rewards/chosen": "reward/chosen",
    "rewards/margins": "reward/margin",
    "rewards/rejected": "reward/rejected",
}
_LEFT_OUT = ("epoch", "model_preparation_time", "num_tokens", "runtime", "total_flos")
_HELD_OUT = "eval_"
_TOTALS = "train_"


def figures(logs: Mapping[str, float]) -> dict[str, float]:
    """The numbers of one row of TRL's log: what was measured on held-out examples as `…/eval`, counters left out."""
    found: dict[str, float] = {}
    for name, value in logs.items():
        plain = name.removeprefix(_HELD_OUT)
        if plain in _LEFT_OUT or plain.endswith("_per_second") or name.startswith(_TOTALS):
            continue
        found[_NAMES.get(plain, plain) + (EVAL if name.startswith(_HELD_OUT) else "")] = float(value)
    return dict(sorted(found.items(), key=lambda item: not item[0].startswith(_FIRST)))


def measured(logs: Mapping[str, float]) -> dict[str, float]:
    """What one evaluation measured: `loss`, `accuracy`, …"""
    return {name.removesuffix(EVAL): value for name, value in figures(logs).items() if name.endswith(EVAL)}
