"""Names of workers, apart for every runner on a store.

The runners of one run are `runner-0`, `runner-1` and so on. Where runners of several runs share a store, each run gives
its processes a label, and they are `runner-0@label`.
"""

from __future__ import annotations

_label: list[str] = []


def set_worker_label(label: str | None) -> None:
    """Name the workers of this process with `label` from now on."""
    _label[:] = [] if label is None else [label]


def worker_name(number: int, label: str | None = None) -> str:
    """The name of a runner under `label`, or under the one of this process."""
    chosen = label if label is not None else (_label[0] if _label else None)
    return f"runner-{number}" if chosen is None else f"runner-{number}@{chosen}"
