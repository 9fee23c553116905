"""Published variants as settings: what each paper changes against GRPO, and nothing else.

A preset gives defaults; a setting that is given by name wins over it. Values that only make sense at the size of a
paper's runs (batch size, learning rate) are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PRESETS: dict[str, Mapping[str, Any]] = {
    # Shao et al. 2024, arXiv:2402.03300: the defaults.
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
    # Zheng et al. 2025, arXiv:2507.18071, section 5.1. Its clip range is narrower than what sampler and learner differ
    # by in 16 bits: the ratio is taken to the learner's own numbers, and the difference goes into a weight.
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
}
"""Settings of each preset, by the names of `GRPOSettings`."""
