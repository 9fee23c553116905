"""Adapters that come and go while a model is loaded: for clients that each train one of their own on the same base.

An adapter has its matrices in the layers beside those of all others, and is trained by a `Learner` of its own, whose
gradients and moments it keeps until it is removed. Layers are computed as fast as those of the first adapter where
that one has them too. Everything here runs on the torch thread, inside `Policy.run`.
"""

from __future__ import annotations

import warnings
from typing import Final

import torch

from ..logging import ignore_library_notices
from .errors import PolicyError
from .load import check_adapter_names, new_adapter_config
from .model import DEFAULT_ADAPTER, PolicyModel
from .settings import LoraSettings

_ATTENTION: Final = ("attn", "attention")
"""Parts of the names of modules whose linear layers belong to attention; all others count as the MLP's."""


def add_adapter(model: PolicyModel, name: str, lora: LoraSettings, *, seed: int | None = None) -> None:
    """Add an adapter that changes nothing yet and can be trained.

    Args:
        seed: of its initial values; None takes torch's generator as it is.

    Raises:
        PolicyError: the weights are trained in full, the name is taken, or no layer matches `target_modules`.
    """
    if model.peft_model is None:
        raise PolicyError("adapters need a base that stays as it is, but here the weights are trained in full")
    if name in model.versions:
        raise PolicyError(f"there is an adapter named {name!r} already")
    check_adapter_names([name], model.base)
    model.unpack()
    # Others' random numbers go on as if nothing had been added.
    with torch.random.fork_rng(devices=[] if model.device.type == "cpu" else [model.device]):
        if seed is not None:
            torch.manual_seed(seed)
        with warnings.catch_warnings():
            ignore_library_notices()
            try:
                model.peft_model.add_adapter(name, new_adapter_config(lora))
            except ValueError as error:
                model.peft_model.peft_config.pop(name, None)
                raise PolicyError(f"no adapter can be added: {error}", setting="target_modules") from error
    model.adapters = (*model.adapters, name)
    model.versions[name] = 0


def remove_adapter(model: PolicyModel, name: str) -> None:
    """Remove an adapter that nothing samples with any more, and free its memory.

    Raises:
        PolicyError: there is no such adapter, or it is the first one, which every model has.
    """
    if name not in model.versions or name == DEFAULT_ADAPTER or model.peft_model is None:
        raise PolicyError(f"there is no adapter named {name!r} to remove")
    model.unpack()
    model.activate(DEFAULT_ADAPTER)
    model.peft_model.delete_adapter(name)
    model.adapters = tuple(each for each in model.adapters if each != name)
    del model.versions[name]


def linear_layers(model: PolicyModel, *, attention: bool, mlp: bool) -> tuple[str, ...]:
    """Return the names of the linear layers of the attention, of the MLP or of both, as `target_modules` takes them.

    Raises:
        PolicyError: there is none.
    """
    found: set[str] = set()
    for path, module in model.backbone.named_modules():
        if not isinstance(module, torch.nn.Linear) or ".lora_" in path:
            continue
        names = [part for part in path.split(".") if part != "base_layer"]
        of_attention = any(word in part.lower() for part in names[:-1] for word in _ATTENTION)
        if attention if of_attention else mlp:
            found.add(names[-1])
    if not found:
        raise PolicyError("the model has no linear layers of that kind", setting="target_modules")
    return tuple(sorted(found))
