"""The teacher that settings ask for, made on the torch thread once a run, for each adapter that is trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ....gateway import ServedPolicy, load_tokenizer
from ....policy import PolicyError, Scorer, adapter_folder, load_model
from ...loop.objective import Learners
from ..settings import BASE_TEACHER, SELF_TEACHER, GRPOSettings, is_address
from .base import Teacher
from .local import LocalTeacher
from .privileged import PrivilegedTeacher
from .server import ServerTeacher

if TYPE_CHECKING:
    from ....policy import PolicyModel

ADAPTER = "teacher"
"""Name that the folder of an adapter gets beside the policy's own."""


def teacher_adapter(settings: GRPOSettings, *, known: Mapping[str, object]) -> dict[str, Path]:
    """Return the adapter to load beside the policy's own as its teacher, by its name; empty where there is none.

    Args:
        known: the adapters that the policy has already, by name.
    """
    teacher = settings.teacher
    if teacher is None or teacher in (BASE_TEACHER, SELF_TEACHER) or is_address(teacher) or teacher in known:
        return {}
    folder = adapter_folder(teacher)
    return {} if folder is None else {ADAPTER: folder}


def make_teachers(settings: GRPOSettings, served: ServedPolicy, learners: Learners) -> dict[str, Teacher]:
    """Return the teacher of each adapter; empty where the settings ask for none.

    Raises:
        PolicyError: the teacher cannot be had, or has another tokenizer.
    """
    teacher, model = settings.teacher, served.policy.model
    if teacher is None:
        return {}
    if is_address(teacher):
        return dict.fromkeys(learners, ServerTeacher(teacher, settings.teacher_model or served.name))
    if teacher == SELF_TEACHER:
        if served.server is None:
            raise RuntimeError("the policy is not served")
        renderer = served.server.renderer
        return {
            adapter: PrivilegedTeacher(
                learner.scorer(adapter),
                renderer,
                reward=settings.teacher_reward,
                context_length=model.context_length,
            )
            for adapter, learner in learners.items()
        }
    name = None if teacher == BASE_TEACHER else ADAPTER if ADAPTER in model.versions else teacher
    if name is None or name in model.versions:
        return {adapter: LocalTeacher(learner.scorer(name)) for adapter, learner in learners.items()}
    other = _other_model(teacher, served)
    return {
        adapter: LocalTeacher(
            Scorer(
                other,
                other.adapters[0],
                max_tokens=learner.settings.max_batch_tokens,
                head_rows=learner.settings.head_rows,
            )
        )
        for adapter, learner in learners.items()
    }


def _other_model(teacher: str, served: ServedPolicy) -> PolicyModel:
    """Return another model, in the number format and on the device of the policy's."""
    own, theirs = served.tokenizer, load_tokenizer(teacher)
    if own.get_vocab() != theirs.get_vocab():
        raise PolicyError(
            f"{teacher} has another tokenizer than {served.name}: no token is compared", setting="teacher"
        )
    where = served.policy.model
    model = load_model(teacher, device=str(where.device))
    model.base.to(where.dtype).requires_grad_(False)
    return model
