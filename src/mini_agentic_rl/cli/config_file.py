"""Settings from files: `--config FILE` in YAML, TOML or JSON, and `--print-config`, whose output is such a file."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from ..config import Settings, extra_of
from ..errors import UserError


def read_config(path: Path, kind: type[Settings]) -> dict[str, Any]:
    """Return the settings in a file, by name or in their groups.

    Raises:
        UserError: the file cannot be read, or names what is no setting.
    """
    try:
        found = _parse(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}", setting="config") from error
    except (ValueError, ImportError) as error:  # of YAML, TOML and JSON
        raise UserError(f"{path}: {' '.join(str(error).split())}", setting="config") from error
    if not isinstance(found, Mapping):
        raise UserError(f"{path} holds no settings by name", setting="config")
    for name in found:
        if name not in kind.settings() and name not in kind.model_fields:
            near = difflib.get_close_matches(str(name), list(kind.settings()), n=1, cutoff=0.6)
            hint = f": did you mean {near[0]}?" if near else ""
            raise UserError(f"{path}: {name} is unknown{hint}", setting="config")
    return dict(found)


def as_yaml(settings: Settings) -> str:
    """Return the settings as YAML that `read_config` reads, in the groups of the help page."""
    values = settings.flat()
    named = [one for one in settings.settings().values() if not extra_of(one.field).get("argument")]
    lines: list[str] = []
    for panel, group in groupby(named, key=lambda one: one.panel):
        if panel is not None:
            lines += [*([""] if lines else []), f"# {panel}"]
        for setting in group:
            value = json.dumps(values.pop(setting.name), ensure_ascii=False)
            lines.append(f"{setting.name}: {value}{'  # by default decided elsewhere' if setting.is_open else ''}")
    rest = {name: value for name, value in values.items() if isinstance(value, Mapping)}
    lines += [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in rest.items()]
    return "\n".join(lines) + "\n"


def _parse(path: Path) -> Any:
    suffix = path.suffix.lower()
    if suffix == ".toml":
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
        return tomllib.loads(path.read_text(encoding="utf-8"))
    if suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8"))
    if suffix not in (".yaml", ".yml"):
        raise ValueError("settings are read from .yaml, .toml and .json")
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"this is no YAML: {error}") from error
    return {} if found is None else found
