"""Adapters of clients: the layers that they change, and their removal."""

from __future__ import annotations

from torch import nn

from ...policy import DEFAULT_ADAPTER, PolicyError, PolicyModel


def remove_adapter(model: PolicyModel, name: str) -> None:
    """Remove an adapter that nothing samples with any more, and free its memory. On the torch thread.

    Raises:
        PolicyError: there is no such adapter, or it is the first one, which every model has.
    """
    if name not in model.versions or name == DEFAULT_ADAPTER or model.peft_model is None:
        raise PolicyError(f"there is no adapter named {name!r} to remove")
    model.unpack()
    model.activate(DEFAULT_ADAPTER)
    model.peft_model.delete_adapter(name)
    model.adapters = tuple(adapter for adapter in model.adapters if adapter != name)
    del model.versions[name]


def linear_layers(model: PolicyModel, *, attention: bool, mlp: bool) -> tuple[str, ...]:
    """Return the names of the linear layers of the attention, of the MLP or of both, as `target_modules` takes them.

    Raises:
        PolicyError: there is none.
    """
    layers: set[str] = set()
    for path, module in model.backbone.named_modules():
        if not isinstance(module, nn.Linear) or ".lora_" in path:
            continue
        names = [part for part in path.split(".") if part != "base_layer"]
        # A layer inside a module named after attention belongs to it; all others count as the MLP's.
        of_attention = any(word in part.lower() for part in names[:-1] for word in ("attn", "attention"))
        if attention if of_attention else mlp:
            layers.add(names[-1])
    if not layers:
        raise PolicyError("the model has no linear layers of that kind", setting="target_modules")
    return tuple(sorted(layers))
