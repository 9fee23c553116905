"""Arguments of an algorithm that belong elsewhere: a refusal says where."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from ...config import VALUES, called_here
from ...errors import UserError
from ...gateway import RolloutLimits
from ...policy import EngineSettings, LearnerSettings, ModelSettings

_TRAINER: Final = ("output_dir", "resume", "overwrite", "n_runners", "hooks", "loggers")
_REWARDS: Final = ("reward_fn", "reward_func", "reward_funcs", "reward_function", "reward_model")
_WHOLE: Final = ("use_lora", "use_peft", "full_finetune")
_LORA: Final = {"lora_r": "r", "lora_alpha": "alpha", "lora_dropout": "dropout", "target_modules": "target_modules"}


def refuse_misplaced(names: Iterable[str], known: Collection[str]) -> None:
    """Check arguments given by name; one that is unknown everywhere is left to the settings to refuse.

    Args:
        known: names of settings of the loop.

    Raises:
        UserError: an argument belongs elsewhere; the message says where.
    """
    for name in names:
        if name in known or called_here(name, known) is not None:
            continue
        place = _place(name)
        if place is not None:
            raise UserError(f"{name} is no setting of the loop: {place}")


def _place(name: str) -> str | None:
    if name in _REWARDS:
        return "the reward is what the agent, or a hook's on_rollout_end, returns"
    if name in _WHOLE:
        return "lora=None trains every weight, lora=LoraSettings(…) an adapter"
    for keyword, kind in (("learner", LearnerSettings), ("engine", EngineSettings)):
        field = _field(name, kind.model_fields)
        if field is not None:
            return f"give {keyword}={kind.__name__}({field}=…)"
    field = _field(name, _LORA)
    if field is not None:
        return f"give lora=LoraSettings({_LORA[field]}=…)"
    field = _field(name, RolloutLimits.model_fields)
    if field is not None:
        return f"give limits=GatewayLimits({field}=…)"
    field = _field(name, [*ModelSettings.model_fields, "backend"])
    if field in ("model", "backend"):
        return f"give {field}={VALUES.get(name, '…')!r}"
    if field is not None:
        return f'give load_options={{"{field}": {VALUES.get(name, "…")!r}}}'
    field = _field(name, _TRAINER)
    return None if field is None else f"give it to Trainer({'logger' if field == 'loggers' else field}=…)"


def _field(name: str, known: Collection[str]) -> str | None:
    return name if name in known else called_here(name, known)
