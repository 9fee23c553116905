"""Settings files: `--config FILE` reads YAML, TOML or JSON; `--print-config` writes YAML."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from functools import reduce
from inspect import isclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final, get_args

from ..config import Settings, extra_of, refusal
from ..errors import UserError
from ..redaction import without_secrets_within

MAX_BYTES: Final = 1 << 18
"""Largest size of a settings file in bytes."""
MAX_VALUES: Final = 100_000
"""Largest number of values, with all YAML anchors expanded."""


_BACKSLASH: Final = re.compile("escape|hex value", re.IGNORECASE)
"""Words of errors about a backslash that begins no escape sequence."""


def read_config(path: Path, kind: type[Settings]) -> dict[str, Any]:
    """Return the settings in a file, by name or in their groups.

    Raises:
        UserError: the file cannot be read, or contains an unknown setting.
    """
    try:
        values = _parse(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}", setting="config") from error
    except RecursionError as error:
        raise UserError(f"{path}: nested too deeply", setting="config") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8: save it as UTF-8 ({error})", setting="config") from error
    except (ValueError, ImportError) as error:  # of YAML, TOML and JSON
        advice = "; in a path between double quotes write / for \\" if _BACKSLASH.search(str(error)) else ""
        raise UserError(f"{path}: {' '.join(str(error).split())}{advice}", setting="config") from error
    if not isinstance(values, Mapping):
        raise UserError(f"{path} holds no settings by name", setting="config")
    _refuse_unknown(values, [kind], path)
    return dict(values)


def _refuse_unknown(values: Mapping[Any, Any], kinds: Sequence[type[Settings]], path: Path, group: str = "") -> None:
    """Refuse an unknown key; a group may have the settings of any of the classes `kinds`."""
    known = {name: field for kind in kinds for name, field in kind.model_fields.items()}
    settings = {name for kind in kinds for name in kind.settings()}
    for name, value in values.items():
        if name not in known and name not in settings:
            complaint = refusal(str(name), sorted(settings)) or f"{name} is unknown"
            raise UserError(f"{path}: {group}{complaint.replace('`', '')}", setting="config")
        if name not in known:
            continue
        annotation = known[name].annotation
        types = (annotation, *get_args(annotation))
        inner = [type_ for type_ in types if isclass(type_) and issubclass(type_, Settings)]
        if inner and isinstance(value, Mapping):
            _refuse_unknown(value, inner, path, f"{group}{name}.")
        elif inner and not (value is None and type(None) in types):
            raise UserError(f"{path}: {group}{name} holds no settings by name", setting="config")


def as_yaml(settings: Settings) -> str:
    """Return the settings as YAML for `read_config`, in the panels of the help page, without API keys and without users
    and passwords of URLs."""
    values = settings.flat()
    used: Any = settings.model_dump(mode="json")
    options = [setting for setting in settings.settings().values() if not extra_of(setting.field).get("argument")]
    lines: list[str] = []
    for panel, group in groupby(options, key=lambda setting: setting.panel):
        if panel is not None:
            lines += [*([""] if lines else []), f"# {panel}"]
        for setting in group:
            value = values.pop(setting.name)
            default = reduce(lambda tree, name: tree.get(name) if tree else None, setting.path, used)
            here = "" if value is not None or default is None else f"here {json.dumps(default)}: "
            note = f"  # {here}the default depends on other settings" if setting.is_open else ""
            if not setting.field.repr and value:
                value, note = setting.field.get_default(call_default_factory=True), "  # keys are not written"
            lines.append(f"{setting.name}: {json.dumps(without_secrets_within(value), ensure_ascii=False)}{note}")
    rest = {name: value for name, value in values.items() if isinstance(value, Mapping)}
    lines += [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in rest.items()]
    return "\n".join(lines) + "\n"


def _parse(path: Path) -> Any:
    suffix = path.suffix.lower()
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"settings take {MAX_BYTES} bytes at most")
    if suffix not in (".yaml", ".yml", ".toml", ".json"):
        raise ValueError("settings are read from .yaml, .toml and .json")
    text = path.read_text(encoding="utf-8-sig")  # editors on Windows may write a byte order mark
    if suffix == ".toml":
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
        return tomllib.loads(text)
    if suffix == ".json":
        return json.loads(text)
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is not None and _size(root, {}) > MAX_VALUES:
            raise ValueError(f"its anchors expand to more than {MAX_VALUES} values")
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"this is no YAML: {error}") from error
    return {} if values is None else values


def _size(node: Any, known: dict[int, int]) -> int:
    """Return the number of values of a YAML node with all anchors expanded, in time proportional to the file."""
    if id(node) in known:
        if known[id(node)] < 0:
            raise ValueError("an anchor contains itself")
        return known[id(node)]
    known[id(node)] = -1
    inner = node.value if isinstance(node.value, list) else []
    parts = [part for item in inner for part in (item if isinstance(item, tuple) else (item,))]
    known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(node)]
