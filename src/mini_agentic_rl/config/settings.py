"""Settings: declared once, nested by commands as groups, and given by their names or paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Final, get_args

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError
from typing_extensions import Self

from .other_names import refusal


def _split_at_commas(value: Any) -> Any:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        return value
    parts: list[Any] = []
    for item in items:
        if isinstance(item, str):
            parts += [part.strip() for part in item.split(",") if part.strip()]
        else:
            parts.append(item)
    return parts


COMMAS = BeforeValidator(_split_at_commas)
"""Marks a list whose items may be given one by one, or several in one text: `Annotated[list[int], COMMAS]`."""
_BOUNDS = ("ge", "gt", "le", "lt")
WITHOUT_OPTION: Final = "Without an option: in a file of --config, or in Python"
"""Panel of the settings that have a name but no command-line option."""


class Settings(BaseModel):
    """Base of every settings class: immutable, and an unknown name is an error.

    A setting is declared once, on the class of the thing that it sets. The docstring under it is its description and
    the help text of its command-line option. A command nests these classes as groups; a setting of a group may be given
    by its path, `learner={"learning_rate": 1e-4}`, or by its name alone, `learning_rate=1e-4`. The name is that of the
    field, or of the "option" in its `json_schema_extra`.

    `model_fields_set` holds the given settings, on each level, without those that come from `defaults`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    defaults: ClassVar[Mapping[str, Any]] = {}
    """Defaults that differ from those where the settings are declared, by path (`learner.learning_rate`). None leaves a
    setting open: a choice among the other settings decides it."""
    helps: ClassVar[Mapping[str, str]] = {}
    """Descriptions that differ from those where the settings are declared, by path."""
    panels: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Panels of the help page, each with the paths of its settings in order; `group.*` is all of a group that is not
    named elsewhere. Only these settings have a name and an option; without panels every field has."""

    @classmethod
    def settings(cls) -> Mapping[str, Setting]:
        """Return the settings of a command by name, in the order of the help page.

        Raises:
            TypeError: a path in `panels` leads nowhere, or two settings have one name.
        """
        return _settings(cls)

    @classmethod
    def setting_at(cls, path: Sequence[Any]) -> Setting | None:
        """Return the setting at a path, or the one whose value contains that path; None if there is none."""
        settings = cls.settings().values()
        return next((setting for setting in settings if setting.path == tuple(path[: len(setting.path)])), None)

    def flat(self) -> dict[str, Any]:
        """Return all settings by name as JSON values, open ones as None, and given settings without a name in their
        groups.

        `type(self)(**settings.flat())` equals the settings.
        """
        values, given = self.model_dump(mode="json"), self.model_dump(mode="json", exclude_unset=True)
        flat: dict[str, Any] = {}
        for setting in self.settings().values():
            value: Any = given if setting.is_open else values
            for name in setting.path:
                value = value.get(name) if isinstance(value, Mapping) else None
            flat[setting.name] = value
        groups = _groups(type(self))
        for name, value in given.items():
            leaves = [((name, inner), item) for inner, item in value.items()] if name in groups else [((name,), value)]
            for path, item in leaves:
                if self.setting_at(path) is None:
                    _put(flat, path, item)
        return flat

    def completed(self) -> Settings:
        """Return the settings with the defaults that depend on other settings, such as those of an agent."""
        return self

    def changed(self, **values: Any) -> Self:
        """Return a copy with these settings changed, by name or in their groups.

        Raises:
            pydantic.ValidationError: a value is not allowed, or there is no such setting.
        """
        changes = _grouped(type(self), values)
        given = _merged(self.model_dump(exclude_unset=True), changes)
        if type(self).defaults or _groups(type(self)):
            return type(self).model_validate(given)
        # Validate the settings that were not given too: a group holds the defaults of the command that it is part of.
        settings = type(self).model_validate(_merged(self.model_dump(), changes))
        _forget_defaults(settings, given)
        return settings

    @model_validator(mode="wrap")
    @classmethod
    def _put_into_groups(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(values, Mapping):
            return handler(values)
        given = _grouped(cls, values)
        known = {*cls.settings(), *cls.model_fields, *_aliases(cls)}
        for name in given:
            message = None if name in known else refusal(str(name), sorted(known))
            if message is not None:
                raise PydanticCustomError("unknown_setting", "{message}", {"message": message})
        if not (cls.defaults or _groups(cls)):
            return handler(values)
        defaults: dict[str, Any] = {}
        for path, value in cls.defaults.items():
            if value is not None:
                _put(defaults, path.split("."), value)
        settings = handler(_merged(defaults, given))
        _forget_defaults(settings, given)
        return settings


@dataclass(frozen=True)
class Setting:
    """One setting of a settings class or of one of its groups."""

    path: tuple[str, ...]
    """Names of the groups, and of the field."""
    name: str
    """Name of the setting without its groups."""
    field: FieldInfo
    default: Any
    """Default in this class."""
    help: str
    """Description in this class, in one line."""
    panel: str | None
    """Panel of the help page."""
    is_open: bool
    """True if other settings decide it unless it is given."""


class SeedSettings(Settings):
    """The seed of random numbers."""

    seed: int = Field(default=0, ge=0)
    """Seed of tasks, sampling and initial weights."""


class JsonSettings(Settings):
    """Settings of the output of a command."""

    json_output: bool = Field(default=False, json_schema_extra={"option": "--json"})
    """Print the result as JSON on standard output."""


class PollSettings(Settings):
    """Polling of a command that follows what other processes write."""

    once: bool = False
    """Do what can be done now, and exit; otherwise run until Ctrl-C."""
    poll_seconds: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    """Seconds between two polls."""


def restated(kind: type[Settings], name: str, default: Any, help: str | None = None, **bounds: float) -> Any:
    """Return the field of a setting of another class, with its bounds and description, to declare it under another name
    or default.

    Args:
        kind: class that declares the setting.
        name: name of the setting in that class.
        default: new default.
        help: new description; None keeps that of the setting.
        bounds: new `ge`, `gt`, `le` and `lt`, where they differ.
    """
    field = kind.model_fields[name]
    usual = {name: getattr(bound, name) for bound in field.metadata for name in _BOUNDS if hasattr(bound, name)}
    extra: Any = {**extra_of(field), "restates": name}
    return Field(
        default=default,
        repr=field.repr,
        description=help or field.description,
        json_schema_extra=extra,
        **{**usual, **bounds},
    )


def extra_of(field: FieldInfo) -> dict[str, Any]:
    """Return the `json_schema_extra` of a field: "option", "panel", "argument", "restates"."""
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


@cache
def _aliases(kind: type[Settings]) -> frozenset[str]:
    """Return the validation aliases of the fields of a class."""
    aliases = [field.validation_alias for field in kind.model_fields.values()]
    choices = [alias.choices if isinstance(alias, AliasChoices) else [alias] for alias in aliases]
    return frozenset(name for names in choices for name in names if isinstance(name, str))


@cache
def _groups(kind: type[Settings]) -> Mapping[str, Sequence[type[Settings]]]:
    """Return the groups of a class, each with the settings classes that it may be."""
    groups = {}
    for name, field in kind.model_fields.items():
        types = (field.annotation, *get_args(field.annotation))
        kinds = [type_ for type_ in types if isinstance(type_, type) and issubclass(type_, Settings)]
        if kinds:
            groups[name] = kinds
    return groups


@cache
def _settings(kind: type[Settings]) -> Mapping[str, Setting]:
    paths: dict[tuple[str, ...], str | None]
    paths = {(name,): extra_of(field).get("panel") for name, field in kind.model_fields.items()}
    if kind.panels:
        named = {text for texts in kind.panels.values() for text in texts}
        paths = {}
        for text, title in ((text, title) for title, texts in kind.panels.items() for text in texts):
            group, _, name = text.partition(".")
            if name == "*":
                fields = _groups(kind)[group][0].model_fields
                paths |= {(group, field): title for field in fields if f"{group}.{field}" not in named}
            else:
                paths[tuple(text.split("."))] = title
    settings: dict[str, Setting] = {}
    for path, panel in paths.items():
        setting = _setting(kind, path, panel)
        if setting.name in settings:
            other = settings[setting.name].path
            raise TypeError(f"{kind.__name__} has two settings of the name {setting.name!r}: {other} and {path}")
        settings[setting.name] = setting
    return settings


def _setting(kind: type[Settings], path: tuple[str, ...], panel: str | None) -> Setting:
    """Return a setting; the outermost class that has another default or description of it decides."""
    defaults: list[Any] = []
    helps: list[str] = []
    homes: Sequence[type[Settings]] = (kind,)
    for depth, name in enumerate(path):
        home = next((home for home in homes if name in home.model_fields), None)
        if home is None:
            raise TypeError(f"{kind.__name__} has no setting {'.'.join(path)!r}")
        field, inner_path = home.model_fields[name], ".".join(path[depth:])
        defaults += [home.defaults[inner_path]] if inner_path in home.defaults else []
        helps += [home.helps[inner_path]] if inner_path in home.helps else []
        homes = _groups(home).get(name, ())
    option = str(extra_of(field).get("option", "")).removeprefix("--").replace("-", "_")
    return Setting(
        path=path,
        name=option if option and len(path) > 1 else path[-1],
        field=field,
        default=[*defaults, field.get_default(call_default_factory=True)][0],
        help=" ".join([*helps, field.description or ""][0].split()),
        panel=panel,
        is_open=kind.defaults.get(".".join(path), ...) is None,
    )


def _grouped(kind: type[Settings], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return given values with the settings of groups in their groups; open settings that are None are left out."""
    groups, named = _groups(kind), kind.settings()
    grouped: dict[str, Any] = {}
    for name, value in values.items():
        if name in groups and isinstance(value, Settings):
            value = value.model_dump(exclude_unset=True)
        if name in groups and isinstance(value, Mapping):
            for key, item in value.items():
                path = named[key].path if key in named else ()
                inner = path[-1] if path[:-1] == (name,) else key
                if item is not None or kind.defaults.get(f"{name}.{inner}", ...) is not None:
                    _put(grouped, (name, inner), item)
            grouped.setdefault(name, {})
        elif name in named:
            if value is not None or not named[name].is_open:
                _put(grouped, named[name].path, value)
        else:
            grouped[name] = value
    return grouped


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return both trees as one; where both have a value, that of the second."""
    merged = dict(first)
    for name, value in second.items():
        inner = merged.get(name)
        merged[name] = _merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return merged


def _forget_defaults(settings: Settings, given: Mapping[str, Any]) -> None:
    """Leave only the given settings in `model_fields_set`, in all groups."""
    settings.model_fields_set.intersection_update(given)
    for name in _groups(type(settings)):
        inner = given.get(name, {})
        if isinstance(inner, Mapping):
            _forget_defaults(getattr(settings, name), inner)


def _put(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value
