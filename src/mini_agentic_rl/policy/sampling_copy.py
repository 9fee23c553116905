"""A second copy of the weights on a device of its own, with which the engine samples while the first one learns.

The base is loaded once more; what is trained is copied over at each version. Both copies count the same versions.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from .load import load_model
from .model import PolicyModel


class SamplingCopy:
    """The copy, and the way that new weights take into it."""

    def __init__(self, learnt: PolicyModel, model: PolicyModel) -> None:
        """
        Args:
            learnt: the weights that learn.
            model: the copy that samples.
        """
        self.model = model
        self._pairs = {
            adapter: list(zip(learnt.trainable(adapter), model.trainable(adapter), strict=True))
            for adapter in learnt.adapters
        }
        self._versions = learnt.versions
        for adapter in learnt.adapters:
            self.take(adapter)

    @torch.no_grad()
    def take(self, adapter: str) -> None:
        """Copy the weights of `adapter`, and their version. On the thread that samples."""
        self.model.unpack()
        for source, target in self._pairs.get(adapter, ()):
            target.copy_(source)
        self.model.versions[adapter] = self._versions[adapter]


def load_second(model: str | PreTrainedModel, device: str, options: Mapping[str, Any]) -> PolicyModel:
    """Load the copy, with the options of `load_model`. A model that is given as an object is copied as it is.

    Raises:
        PolicyError: there is no such device.
    """
    given = model if isinstance(model, str) else copy.deepcopy(model).to(torch.device(device))
    return load_model(given, **{**options, "device": device})
