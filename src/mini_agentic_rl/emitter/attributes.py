"""Turn any value into span attributes: flat names, and values that OpenTelemetry accepts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from ..types import Attributes

_SCALARS = (str, bool, int, float)


def flatten(values: Mapping[str, Any]) -> Attributes:
    """Nested mappings and lists of mappings become dotted names; None is left out; what is left over becomes JSON.

    `{"a": {"b": 1}, "c": [{"d": 2}]}` becomes `{"a.b": 1, "c.0.d": 2}`.
    """
    flat: Attributes = {}
    for key, value in values.items():
        flat.update(_flatten_one(str(key), value))
    return flat


def _flatten_one(key: str, value: Any) -> Attributes:
    if value is None:
        return {}
    if isinstance(value, _SCALARS):
        return {key: value}
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return flatten({f"{key}.{name}": item for name, item in value.items()})
    if isinstance(value, list | tuple):
        if any(isinstance(item, Mapping | BaseModel) for item in value):
            return flatten({f"{key}.{index}": item for index, item in enumerate(value)})
        for kind in _SCALARS:
            if all(type(item) is kind for item in value):
                return {key: list(value)}
    return {key: json.dumps(value, default=repr)}
