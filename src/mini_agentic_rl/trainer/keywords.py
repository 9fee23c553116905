"""Keywords that `Trainer` does not know: the refusal says what was probably meant, or where it is given."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Final, ParamSpec

from ..config import refusal
from ..errors import UserError

P = ParamSpec("P")

_PARTS: Final = ("model", "tokenizer", "lora", "learner", "engine", "limits", "warm_start", "backend", "load_options")
_HERE: Final = {"loggers": "logger", "report_to": "logger"}


class UnknownKeywordError(UserError, TypeError):
    """Report an argument that is not there: an error that a person can mend, and Python's own for such a call."""


def refuses_unknown_keywords(init: Callable[P, None]) -> Callable[P, None]:
    """Let a constructor refuse keywords that it does not know with an `UnknownKeywordError`; its signature stays."""
    known = [name for name in inspect.signature(init).parameters if name != "self"]

    @functools.wraps(init)
    def checked(*args: P.args, **keywords: P.kwargs) -> None:
        for name in keywords:
            if name not in known:
                raise UnknownKeywordError(_complaint(name, known))
        init(*args, **keywords)

    return checked


def _complaint(name: str, known: Collection[str]) -> str:
    from ..algorithm import GRPOSettings, PPOSettings
    from ..policy import LearnerSettings, LoraSettings

    if name in _HERE:
        return f"{name} is no argument of Trainer: here it is `{_HERE[name]}`"
    settings = {*GRPOSettings.model_fields, *PPOSettings.model_fields, *LearnerSettings.model_fields, *_PARTS}
    settings.update(LoraSettings.model_fields, (f"lora_{field}" for field in LoraSettings.model_fields))
    of_algorithm = None if name in settings else refusal(name, known)
    if of_algorithm is not None:
        return f"{of_algorithm} (an argument of Trainer)"
    if name in settings or refusal(name, settings) is not None:
        return f"{name} is no argument of Trainer: give it to the algorithm, Trainer(algorithm=MiniGRPO(…))"
    return f"{name} is no argument of Trainer: it takes {', '.join(known)}"
