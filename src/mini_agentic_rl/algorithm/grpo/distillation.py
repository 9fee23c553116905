"""On-policy distillation: a teacher's word on every token that the policy sampled (Agarwal et al. 2024,
arXiv:2306.13649; Gu et al. 2024, arXiv:2306.08543; Lu and Thinking Machines 2025, "On-policy distillation").

What is made smaller is the reverse divergence KL(pi || pi_T) in the states that the policy comes to, in one of two
ways:

    sampled    A_t = reward_coef A_t + teacher_coef (log pi_T(token) - log pi_old(token))
    top_k      A_t = reward_coef A_t, and teacher_coef KL(pi || pi_T) of the state is added to the loss

The first is an estimate from the token that was drawn: minus k1 (`losses/kl.py`) as the reward of that token alone, no
sum over what is to come. Under the policy gradient its mean is the gradient of the second, which looks at the teacher's
K likeliest tokens (`policy/head.py`) and so varies less, for more memory.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .batch import TrainingBatch
from .settings import GRPOSettings
from .teachers import Teacher


def with_teacher(
    batch: TrainingBatch, teacher: Teacher, settings: GRPOSettings
) -> tuple[TrainingBatch, dict[str, float]]:
    """Return the batch with what the teacher says of it, and metrics about that. On the torch thread.

    Raises:
        UserError: the teacher cannot be asked.
    """
    if settings.distillation == "top_k":
        tokens_SK, logprobs_SK = teacher.likeliest(batch, settings.teacher_top_k)
        return replace(batch, teacher_tokens_SK=tokens_SK, teacher_logprobs_SK=logprobs_SK), {}
    distance_S = batch.packed.behaviour_logprobs_S.astype(np.float64) - teacher.logprobs(batch)
    distance_S[batch.sampled_terms :] = 0.0
    advantages_S = batch.advantages_S - settings.teacher_coef * distance_S
    total = batch.weights_S.sum()
    metrics = {"teacher/kl": float((batch.weights_S * distance_S).sum() / total)} if total > 0 else {}
    return replace(batch, advantages_S=advantages_S.astype(np.float32)), metrics
