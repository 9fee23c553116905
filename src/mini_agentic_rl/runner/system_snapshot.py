"""The resources of a computer and their use, under the older name `utils.system_snapshot`."""

from __future__ import annotations

import platform
import socket
from datetime import datetime
from importlib import import_module
from typing import Any, Final

import psutil

_GIB: Final = 2**30
_MIB: Final = 2**20


def system_snapshot(include_gpu: bool = False) -> dict[str, Any]:
    """Return name and system of this computer, and the use of its processor, memory, disk and network.

    Args:
        include_gpu: Add `gpus`, what torch tells of them.
    """
    memory, disk, network = psutil.virtual_memory(), psutil.disk_usage("/"), psutil.net_io_counters()
    return {
        "timestamp": datetime.now().isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "os": platform.platform(),
        "cpu_name": platform.processor(),
        "cpu_cores": psutil.cpu_count(logical=False),
        "cpu_threads": psutil.cpu_count(),
        "cpu_usage_pct": psutil.cpu_percent(),
        "mem_used_gb": round(memory.used / _GIB, 2),
        "mem_total_gb": round(memory.total / _GIB, 2),
        "mem_pct": memory.percent,
        "disk_used_gb": round(disk.used / _GIB, 2),
        "disk_total_gb": round(disk.total / _GIB, 2),
        "disk_pct": disk.percent,
        "bytes_sent_mb": round(network.bytes_sent / _MIB, 2),
        "bytes_recv_mb": round(network.bytes_recv / _MIB, 2),
        **({"gpus": gpus()} if include_gpu else {}),
    }


def gpus() -> list[dict[str, Any]]:
    """Return name and memory of each GPU of CUDA; none where torch is not installed."""
    try:
        torch = import_module("torch")  # loaded for this alone: a runner needs none
    except ImportError:
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        found.append(
            {
                "gpu": torch.cuda.get_device_name(index),
                "mem_used_mb": round((total - free) / _MIB),
                "mem_total_mb": round(total / _MIB),
            }
        )
    return found
