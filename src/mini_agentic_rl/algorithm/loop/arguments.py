"""Arguments of `ReinforcementLearning`: put into one form, checked together, refused where they belong elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ...config import VALUES, called_here
from ...errors import UserError
from ...gateway import RolloutLimits
from ...policy import EngineSettings, LearnerSettings, LoraSettings, ModelSettings, PolicyError
from ...samplers import SamplerSettings
from .warm_start import WarmStart

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


def adapter_folders(
    adapters: Sequence[str] | Mapping[str, str | Path | None] | None,
) -> Mapping[str, str | Path | None] | None:
    """Return the adapters that are trained, by name: the folder of a saved one to go on with, None for a new one. None
    is one adapter without a name of its own."""
    if adapters is None or isinstance(adapters, Mapping):
        return adapters
    return dict.fromkeys([adapters] if isinstance(adapters, str) else adapters)


def warm_starts_of(
    warm_start: WarmStart | Mapping[str, WarmStart] | None, adapters: Mapping[str, Any]
) -> dict[str, WarmStart]:
    """Return what each adapter imitates; one that is given alone is for the first.

    Raises:
        PolicyError: there is no such adapter.
    """
    if warm_start is None:
        return {}
    if isinstance(warm_start, WarmStart):
        return {next(iter(adapters)): warm_start}
    unknown = sorted(set(warm_start) - set(adapters))
    if unknown:
        raise PolicyError(f"{unknown[0]!r} is not among the adapters {', '.join(adapters)}", setting="warm_start")
    return dict(warm_start)


def check_shard(sampler: SamplerSettings, lora: LoraSettings | None, load_options: Mapping[str, Any]) -> None:
    """Check that a base in parts (`shard`) is only learnt with, and stays as it is.

    Raises:
        PolicyError: it would be sampled with, or trained itself.
    """
    if sampler.sampler == "own":
        raise PolicyError(
            "ranks that hold a part of the base each cannot sample: have servers do it, as with `sampler=vllm`",
            setting="shard",
        )
    if lora is None:
        raise PolicyError("only a frozen base is held in parts: train an adapter (LoRA)", setting="shard")
    if load_options.get("quantization", "none") != "none":
        raise PolicyError("a quantised base is not held in parts: use `quantization=none`", setting="shard")
