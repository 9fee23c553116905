"""Settings: declared once, nested by commands as groups, and given by their names or paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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


def _parted(value: Any) -> Any:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        return value
    return [part for item in items for part in (_parts(item) if isinstance(item, str) else [item])]


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


COMMAS = BeforeValidator(_parted)
"""Marks a list whose items may be given one by one, or several in one text: `Annotated[list[int], COMMAS]`."""


_BOUNDS = ("ge", "gt", "le", "lt")


WITHOUT_OPTION: Final = "Without an option: in a file of --config, or in Python"
"""Name of the panel of settings that have a name, but no command-line option."""


class Settings(BaseModel):
    """Base of every settings class: immutable, and an unknown name is an error.

    A setting is declared once, on the class of the thing that it sets. The docstring line under it is its description,
    and so becomes the help text of its command-line option. A job nests these classes as groups; whoever makes its
    settings may spell a setting of a group by its path, `learner={"learning_rate": 1e-4}`, or by its name alone,
    `learning_rate=1e-4`. The name is that of the field, or of the "option" in its `json_schema_extra`.

    `model_fields_set` holds what was given, on each level: what comes from `defaults` does not count.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    defaults: ClassVar[Mapping[str, Any]] = {}
    """Defaults that differ here from those where the settings are declared, by path (`learner.learning_rate`). None
    leaves a setting open: something else decides it where it is not given."""
    helps: ClassVar[Mapping[str, str]] = {}
    """Descriptions that differ here from those where the settings are declared, by path."""
    panels: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Groups of the help page, each with the paths of its settings in order; `group.*` is all of a group. Only these
    have a name and an option here. Without panels that is every field."""

    @classmethod
    def settings(cls) -> Mapping[str, Setting]:
        """Return the settings that have a name here, by name, in the order of the help page.

        Raises:
            TypeError: a path in `panels` leads nowhere, or two settings have one name.
        """
        return _settings(cls)

    @classmethod
    def setting_at(cls, path: Sequence[Any]) -> Setting | None:
        """Return the named setting at a path, or the one that the path leads into; None where there is none."""
        return next((one for one in cls.settings().values() if one.path == tuple(path[: len(one.path)])), None)

    def flat(self) -> dict[str, Any]:
        """Return all settings by name as JSON values, open ones as None, and what is set beside them in its group.

        `type(self)(**settings.flat())` are the same settings again.
        """
        values, given = self.model_dump(mode="json"), self.model_dump(mode="json", exclude_unset=True)
        found: dict[str, Any] = {}
        for setting in self.settings().values():
            found[setting.name] = _at(given if setting.is_open else values, setting.path)
        for path, value in _leaves(given, _groups(type(self))):
            if self.setting_at(path) is None:
                _put(found, path, value)
        return found

    def completed(self) -> Settings:
        """Return the settings with those defaults that a choice among them decides."""
        return self

    def changed(self, **values: Any) -> Self:
        """Return a copy in which these settings, by name or in their groups, are set.

        Raises:
            pydantic.ValidationError: a value cannot be had, or there is no such setting.
        """
        changes = _grouped(type(self), values)
        given = _merged(self.model_dump(exclude_unset=True), changes)
        if type(self).defaults or _groups(type(self)):
            return type(self).model_validate(given)
        # What was not given too: a group holds the defaults of the settings that it is part of.
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
            complaint = None if name in known else refusal(str(name), sorted(known))
            if complaint is not None:
                raise PydanticCustomError("unknown_setting", "{complaint}", {"complaint": complaint})
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
    """One setting as a class of settings has it: its own, or that of a group."""

    path: tuple[str, ...]
    """Names of the groups, and of the field."""
    name: str
    """Name of the setting without its groups."""
    field: FieldInfo
    default: Any
    """The default that holds here."""
    help: str
    """The description that holds here, in one line."""
    panel: str | None
    """Group of the help page."""
    is_open: bool
    """True if something else decides it where it is not given."""


class SeedSettings(Settings):
    """The seed of random numbers."""

    seed: int = Field(default=0, ge=0)
    """Seed of tasks, sampling and initial weights."""


class JsonSettings(Settings):
    """Settings of the output of a command."""

    json_output: bool = Field(default=False, json_schema_extra={"option": "--json"})
    """Print the result as JSON on standard output."""


class PollSettings(Settings):
    """The pace of a command that looks again and again at what others write."""

    once: bool = False
    """Do what can be done now, and end; otherwise go on until Ctrl-C."""
    poll_seconds: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    """Seconds between two looks."""


def restated(kind: type[Settings], path: str, default: Any, help: str | None = None, **bounds: float) -> Any:
    """Return the field of a setting that another class offers under a name of its own, with its bounds and description.

    Args:
        kind: the class that has the setting.
        path: where it has it.
        default: the default under the other name.
        help: a description that differs.
        bounds: those of `ge`, `gt`, `le` and `lt` that differ.
    """
    field = _field_at(kind, path.split("."))
    usual = {name: getattr(bound, name) for bound in field.metadata for name in _BOUNDS if hasattr(bound, name)}
    extra: Any = {**extra_of(field), "restates": path}
    return Field(
        default=default,
        repr=field.repr,
        description=help or field.description,
        json_schema_extra=extra,
        **{**usual, **bounds},
    )


def extra_of(field: FieldInfo) -> dict[str, Any]:
    """Return what a field says of its option: "option", "panel", "argument"."""
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


@cache
def _aliases(kind: type[Settings]) -> frozenset[str]:
    """Return further names that fields of a class may be given by."""
    found = [field.validation_alias for field in kind.model_fields.values()]
    choices = [alias.choices if isinstance(alias, AliasChoices) else [alias] for alias in found]
    return frozenset(name for names in choices for name in names if isinstance(name, str))


@cache
def _groups(kind: type[Settings]) -> Mapping[str, Sequence[type[Settings]]]:
    """Return the groups of a class, each with the settings classes that it may be."""
    found = {}
    for name, field in kind.model_fields.items():
        kinds = [one for one in (field.annotation, *get_args(field.annotation)) if _is_settings(one)]
        if kinds:
            found[name] = kinds
    return found


def _is_settings(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Settings)


@cache
def _settings(kind: type[Settings]) -> Mapping[str, Setting]:
    offered: list[tuple[tuple[str, ...], str | None]] = [
        (path, panel) for panel, paths in kind.panels.items() for text in paths for path in _spread(kind, text)
    ]
    if not kind.panels:
        offered = [((name,), extra_of(field).get("panel")) for name, field in kind.model_fields.items()]
    found: dict[str, Setting] = {}
    for path, panel in offered:
        setting = _setting(kind, path, panel)
        if setting.name in found:
            raise TypeError(
                f"{kind.__name__} has two settings of the name {setting.name!r}: {found[setting.name].path}"
            )
        found[setting.name] = setting
    return found


def _spread(kind: type[Settings], text: str) -> Iterator[tuple[str, ...]]:
    group, _, rest = text.partition(".")
    if rest == "*":
        yield from ((group, name) for name in _groups(kind)[group][0].model_fields)
    else:
        yield tuple(text.split("."))


def _setting(kind: type[Settings], path: tuple[str, ...], panel: str | None) -> Setting:
    field = _field_at(kind, path)
    option = str(extra_of(field).get("option", "")).removeprefix("--").replace("-", "_")
    return Setting(
        path=path,
        name=option if option and len(path) > 1 else path[-1],
        field=field,
        default=_default_at(kind, path),
        help=" ".join((_override(kind, path, "helps") or field.description or "").split()),
        panel=panel,
        is_open=kind.defaults.get(".".join(path), ...) is None,
    )


def _field_at(kind: type[Settings], path: Sequence[str]) -> FieldInfo:
    for home, rest in _homes(kind, path):
        if len(rest) == 1:
            return home.model_fields[rest[0]]
    raise TypeError(f"{kind.__name__} has no setting {'.'.join(path)!r}")


def _override(kind: type[Settings], path: Sequence[str], of: str) -> Any:
    """Return what the outermost class that has something to say of a setting says of it, or None."""
    return next((found for home, rest in _homes(kind, path) if (found := getattr(home, of).get(".".join(rest)))), None)


def _default_at(kind: type[Settings], path: Sequence[str]) -> Any:
    for home, rest in _homes(kind, path):
        if ".".join(rest) in home.defaults:
            return home.defaults[".".join(rest)]
    return _field_at(kind, path).get_default(call_default_factory=True)


def _homes(kind: type[Settings], path: Sequence[str]) -> Iterator[tuple[type[Settings], Sequence[str]]]:
    """Yield the classes on the way to a setting, each with the rest of the path; of a union those that have it."""
    if path[0] in kind.model_fields:
        yield kind, path
        for inner in _groups(kind).get(path[0], ()) if len(path) > 1 else ():
            found = list(_homes(inner, path[1:]))
            if found:
                yield from found
                return


def _grouped(kind: type[Settings], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given by path: names of settings in groups become mappings, open settings that are None go."""
    groups, named = _groups(kind), kind.settings()
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name in groups and isinstance(value, Settings):
            value = value.model_dump(exclude_unset=True)
        if name in groups and isinstance(value, Mapping):
            for given, item in value.items():
                path = named[given].path if given in named else ()
                inner = path[-1] if path[:-1] == (name,) else given
                if item is not None or kind.defaults.get(f"{name}.{inner}", ...) is not None:
                    _put(found, (name, inner), item)
            found.setdefault(name, {})
        elif name in named:
            if value is not None or not named[name].is_open:
                _put(found, named[name].path, value)
        else:
            found[name] = value
    return found


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return both trees as one; where they contradict each other, the second wins."""
    found = dict(one)
    for name, value in other.items():
        inner = found.get(name)
        found[name] = _merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return found


def _forget_defaults(settings: Settings, given: Mapping[str, Any]) -> None:
    """Let `model_fields_set` hold what was given, in all groups."""
    settings.model_fields_set.intersection_update(given)
    for name in _groups(type(settings)):
        inner = given.get(name, {})
        if isinstance(inner, Mapping):
            _forget_defaults(getattr(settings, name), inner)


def _leaves(values: Mapping[str, Any], groups: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in values.items():
        if name in groups:
            yield from (((name, inner), item) for inner, item in value.items())
        else:
            yield (name,), value


def _at(values: Any, path: Sequence[str]) -> Any:
    for name in path:
        values = values.get(name) if isinstance(values, Mapping) else None
    return values


def _put(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value
