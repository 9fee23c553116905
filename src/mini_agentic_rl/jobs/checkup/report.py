"""All checks, the speed test, and what follows from them, as JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import UserError
from ...processes import CoreWatch, allowed_cores
from ..plan import plan_job
from ..settings import PlanSettings
from .checks import Check
from .hardware import HARDWARE, available_memory
from .installation import INSTALLATION, ports
from .recommend import recommend
from .speed import measure_speed


def checkup(servers: Mapping[str, int], *, speed_test: bool = True) -> dict[str, Any]:
    """Return `installation` and `hardware` (checks), `speed` (None where it was not asked for, or failed),
    `recommendation`, and `faults`, the number of checks that found one.

    Args:
        servers: ports of the commands that serve, by their names.
    """
    installation = [*(check() for check in INSTALLATION), ports(servers)]
    hardware = [check() for check in HARDWARE]
    speed = None
    if speed_test:
        watch = CoreWatch()
        try:
            speed = measure_speed()
        except Exception as error:  # whatever fails here fails in a training too: it is what was looked for
            hardware.append(Check("Speed test", "fault", f"{type(error).__name__}: {error}"))
        free = watch.use().free / allowed_cores()
    else:
        free = 1.0
    found = recommend(
        speed, memory=available_memory(), free=free, card_memory=_card_memory(), planned_peak=_planned_peak()
    )
    checks = [*installation, *hardware]
    return {
        "installation": [check.as_json() for check in installation],
        "hardware": [check.as_json() for check in hardware],
        "speed": None if speed is None else speed.as_json(),
        "recommendation": found.as_json(),
        "faults": sum(check.state == "fault" for check in checks),
    }


def _card_memory() -> int | None:
    import torch

    return int(torch.cuda.get_device_properties(0).total_memory) if torch.cuda.is_available() else None


def _planned_peak() -> int:
    """Return the bytes that the default settings take; 0 where that cannot be planned without the model."""
    from ...policy import embedded_is_pulled

    if not embedded_is_pulled():
        return 0
    try:
        return int(plan_job(PlanSettings())["peak_bytes"])
    except UserError:
        return 0
