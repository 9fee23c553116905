"""Settings in which a run that is to go on differs from what it was begun with."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any], may_change: Collection[str]) -> list[str]:
    """Return a phrase for each setting that has changed, as `loop.seed (was 0, now 1)`.

    Args:
        before: the configuration as it was read, JSON values in groups.
        now: the other one; what JSON makes of it is compared.
        may_change: top-level keys that are left out.
    """
    one, other = _flat(before), _flat(json.loads(json.dumps(now)))
    return [
        f"{key} (was {_shown(one, key)}, now {_shown(other, key)})"
        for key in sorted(one.keys() | other.keys())
        if one.get(key) != other.get(key) and key.split(".")[0] not in may_change
    ]


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            flat |= _flat(item, f"{prefix}{key}.")
        else:
            flat[prefix + key] = item
    return flat


def _shown(flat: Mapping[str, Any], key: str) -> str:
    return json.dumps(flat[key], ensure_ascii=False) if key in flat else "not set"
