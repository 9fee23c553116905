"""Copies from the host to the device that computes, without waiting for what it is computing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def on_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Return an array as a tensor on `device`; on the CPU it is the same memory."""
    return _staged(array, device).to(device, non_blocking=True)


def fill(target: Tensor, array: npt.NDArray[Any]) -> None:
    """Copy an array over `target`, which stays where it is."""
    target.copy_(_staged(array, target.device), non_blocking=True)


def _staged(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    host = torch.from_numpy(np.ascontiguousarray(array))
    # From pageable memory CUDA copies only when everything queued before has run. torch keeps what is pinned until it
    # has been copied.
    return host.pin_memory() if device.type == "cuda" else host
