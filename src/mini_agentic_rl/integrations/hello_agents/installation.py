"""Report what is installed, what is missing, and which devices there are."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec
from typing import Any

TRL_AVAILABLE: bool = find_spec("trl") is not None
"""True if TRL is installed: SFT and preference training stand on it, the reinforcement learning here does not."""

_INSTALL = "pip install 'mini-agentic-rl[trl]'"


def check_trl_installation() -> bool:
    """Return True if TRL can be used."""
    return find_spec("trl") is not None


def get_installation_guide() -> str:
    """Return a text on what each training needs installed, and what of it is missing."""
    state = f"installed ({metadata.version('trl')})" if check_trl_installation() else "not installed"
    return (
        f"TRL: {state}\n"
        f"  SFT, DPO, KTO, ORPO and reward models stand on it:   {_INSTALL}\n"
        "  GRPO, PPO and the other reinforcement learning do not need it.\n"
        "  weights in 4 or 8 bits:                              pip install 'mini-agentic-rl[quant]'\n"
        "  Weights & Biases, TensorBoard, SwanLab and others:   pip install 'mini-agentic-rl[loggers]'"
    )


def get_device_info() -> dict[str, Any]:
    """The devices that torch can compute on: `device` (the one that is taken), `cuda_available`, `device_count`,
    `devices` (name and memory in GiB of each), `bf16`, `torch`, `threads`."""
    import torch

    from ...policy import resolve_device, resolve_dtype

    device = resolve_device("auto")
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {
        "device": str(device),
        "cuda_available": torch.cuda.is_available(),
        "device_count": len(devices),
        "devices": [{"name": one.name, "memory_gib": round(one.total_memory / 2**30, 1)} for one in devices],
        "bf16": resolve_dtype("auto", device) is torch.bfloat16,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
