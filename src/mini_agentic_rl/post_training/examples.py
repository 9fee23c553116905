"""The examples of a run: given by hand or read by name, and divided into those trained on and those held out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..datasets import divide_examples, load_examples
from ..errors import UserError
from .rows import Example
from .settings import PostTrainingSettings


def read_examples(
    settings: PostTrainingSettings, form: Any, train: Sequence[Example] | None, held_out: Sequence[Example] | None
) -> tuple[list[Example], list[Example]]:
    """Training and held-out examples.

    Args:
        form: that of the method.
        train: examples given by hand; None reads `settings.dataset`.
        held_out: those to measure on; None holds `settings.eval_fraction` of the others out.

    Raises:
        UserError: the data set cannot be read, or an extra that it needs is not installed.
    """
    if train is None:
        try:
            train = load_examples(settings.dataset, form, max_samples=settings.max_samples, seed=settings.seed)
        except ImportError as error:
            raise UserError(f"--dataset {settings.dataset}: {error}") from error
    elif settings.max_samples is not None:
        train = train[: settings.max_samples]
    if held_out is not None:
        return list(train), list(held_out)
    if settings.eval_fraction == 0:
        return list(train), []
    trained, measured = divide_examples(list(train), settings.eval_fraction, settings.seed)
    return list(trained), list(measured)
