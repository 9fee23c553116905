"""Published variants as settings: what each paper changes against GRPO, and nothing else.

A preset gives defaults; a setting that is given by name wins over it. Values that only make sense at the size of a
paper's runs (batch size, learning rate) are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from ..plugins import OpenChoices, plugin_has
from .losses import is_loss

PRESETS: dict[str, Mapping[str, Any]] = {
    # Shao et al. 2024, arXiv:2402.03300: the defaults, which average over tokens and not, as the paper's equation 3,
    # within each rollout first: there a short wrong answer weighs as much as a long search that finds nothing, so that
    # its few tokens are suppressed many times as hard, and an agent learns to search on (docs/algorithms.md).
    "grpo": {},
    # Liu et al. 2025, arXiv:2503.20783: neither the standard deviation nor the length of a rollout divides anything.
    "dr_grpo": {"normalize_advantage": False, "loss_aggregation": "dr_grpo"},
    # Yu et al. 2025, arXiv:2503.14476: clip-higher, mean over tokens, dynamic sampling, soft overlong punishment with
    # 4096 of 20480 tokens as its buffer.
    "dapo": {
        "clip_ratio": 0.2,
        "clip_ratio_high": 0.28,
        "loss_aggregation": "token",
        "dynamic_sampling": True,
        "overlong_buffer": 0.2,
    },
    # Zheng et al. 2025, arXiv:2507.18071, section 5.1. Its clip range is narrower than the difference between sampler
    # and learner in 16 bits: the ratio is taken to the learner's own numbers, and the difference goes into a weight.
    "gspo": {
        "policy_loss": "gspo",
        "clip_ratio": 3e-4,
        "clip_ratio_high": 4e-4,
        "loss_aggregation": "sequence",
        "importance_correction": "token",
    },
    # MiniMax-M1, arXiv:2506.13585: no lower bound. The paper tunes the upper one without naming it; a weight of at most
    # 5 is that of ScaleRL (Khatri et al. 2025, arXiv:2510.13786).
    "cispo": {"policy_loss": "cispo", "clip_ratio": 1.0, "clip_ratio_high": 4.0, "loss_aggregation": "token"},
    # Ahmadian et al. 2024, arXiv:2402.14740: the log-probability of a rollout is the sum over its tokens (up to the
    # constant `max_trajectory_tokens`), and a KL penalty is part of the reward.
    "rloo": {
        "baseline": "leave_one_out",
        "normalize_advantage": False,
        "loss_aggregation": "dr_grpo",
        "kl_in_reward": True,
    },
    # Hu et al. 2025, arXiv:2501.03262: no baseline, normalisation over the batch, a KL penalty token by token in the
    # reward. Its variant with a baseline is this preset with `baseline="group"`.
    "reinforce++": {
        "baseline": "none",
        "advantage_normalization": "batch",
        "loss_aggregation": "token",
        "kl_in_reward": True,
    },
    # Tajwar, Zeng et al. 2026, arXiv:2602.02710, algorithm 1: the mean reward divides, and the log-probability of a
    # rollout is the sum over its tokens (up to the constant `max_trajectory_tokens`).
    "maxrl": {"advantage_normalization": "mean", "loss_aggregation": "dr_grpo"},
    # Qi et al. 2026, arXiv:2602.04879: a trust region of the divergence in place of the clipped ratio. The bound is
    # ours.
    "dppo": {"policy_loss": "dppo_tv", "divergence_bound": 0.2, "loss_aggregation": "token"},
    # Ring-1T, arXiv:2510.18855: tokens are masked where the learner's probability is less than half or more than five
    # times the sampler's.
    "icepop": {"importance_correction": "icepop", "importance_floor": 0.5, "importance_cap": 5.0},
    # Liu et al. 2026, arXiv:2601.05242: every reward is compared by itself, their sum over the batch.
    "gdpo": {"separate_rewards": ["all"], "advantage_normalization": "batch"},
    # Shrivastava et al. 2026, arXiv:2605.24517: observations are predicted as well, with their weight.
    "echo": {"echo_coef": 0.05},
}
"""Settings of each preset, by the names of `GRPOSettings`."""


def is_preset(name: str) -> bool:
    """Return True for a name of `PRESETS`, and for that of a plugin's loss, which is then added to them.

    Raises:
        UserError: the plugin's loss cannot be loaded (`losses.is_loss`).
    """
    if name not in PRESETS:
        if not plugin_has("losses", name) or not is_loss(name):
            return False
        PRESETS[name] = {"policy_loss": name}
    return True


if TYPE_CHECKING:
    PresetName: TypeAlias = str
else:  # the choices that help texts and error messages list
    PresetName = Annotated[Literal[tuple(PRESETS)], OpenChoices(is_preset)]
