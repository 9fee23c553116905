"""Teachers of on-policy distillation: weights that a step's rollouts are compared with, token by token.

Agarwal et al. 2024, arXiv:2306.13649; Gu et al. 2024, arXiv:2306.08543.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ..gateway import ServedPolicy, load_tokenizer
from ..policy import Learner, PolicyError, PolicyModel, Scorer, adapter_folder, load_model
from .settings import BASE_TEACHER, GRPOSettings

ADAPTER: Final = "teacher"
"""Name that the folder of an adapter gets beside the policy's own."""


def teacher_adapter(settings: GRPOSettings, *, known: Mapping[str, object]) -> dict[str, Path]:
    """Return the adapter to load beside the policy's as its teacher, by its name; empty without one.

    Args:
        known: the adapters that the policy has already, by name.
    """
    teacher = settings.teacher
    if teacher is None or teacher == BASE_TEACHER or teacher in known:
        return {}
    folder = adapter_folder(teacher)
    return {} if folder is None else {ADAPTER: folder}


def make_teachers(settings: GRPOSettings, served: ServedPolicy, learners: Mapping[str, Learner]) -> dict[str, Scorer]:
    """Return the teacher of each adapter: the model without an adapter, an adapter, or another model; empty where the
    settings ask for none.

    Raises:
        PolicyError: the teacher cannot be loaded, or has another tokenizer.
    """
    teacher, model = settings.teacher, served.policy.model
    if teacher is None:
        return {}
    name = None if teacher == BASE_TEACHER else ADAPTER if ADAPTER in model.versions else teacher
    if name is None or name in model.versions:
        return {adapter: learner.scorer(name) for adapter, learner in learners.items()}
    other = _other_model(teacher, served)
    return {
        adapter: Scorer(
            other,
            other.adapters[0],
            max_tokens=learner.settings.max_batch_tokens,
            head_rows=learner.settings.head_rows,
        )
        for adapter, learner in learners.items()
    }


def _other_model(teacher: str, served: ServedPolicy) -> PolicyModel:
    """Return another model, in the number format and on the device of the policy's."""
    if served.tokenizer.get_vocab() != load_tokenizer(teacher).get_vocab():
        raise PolicyError(
            f"{teacher} has another tokenizer than {served.name}: no token is compared", setting="teacher"
        )
    policy = served.policy.model
    model = load_model(teacher, device=str(policy.device))
    model.base.to(policy.dtype).requires_grad_(False)
    return model
