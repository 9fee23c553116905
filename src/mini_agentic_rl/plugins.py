"""Objects of others by name: plugins, which installed packages offer by entry points, and `module:name` of the user.

A package registers an object in its `pyproject.toml`, in one of the `GROUPS`:

    [project.entry-points."mini_agentic_rl.environments"]
    maze = "my_package.maze:Maze"

A plugin is imported when its name is used. A package that cannot be read or loaded does not affect the others. The
code that uses a plugin checks its type.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from pydantic import GetCoreSchemaHandler, ValidationError
from pydantic_core import core_schema

from .errors import UserError

Kind: TypeAlias = Literal[
    "agents",
    "environments",
    "rewards",
    "datasets",
    "losses",
    "samplers",
    "loggers",
    "stores",
    "recipes",
    "commands",
    "parts",
]
"""`stores` open an address by its scheme, `recipes` are task families (`datasets.families`), `commands` add themselves
to the command line, `parts` are optional modules of this package."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

_DISTRIBUTION: Final = "mini-agentic-rl"
_ROOT: Final = "mini_agentic_rl."
GROUPS: Final = {_ROOT + kind: kind for kind in KINDS}
"""Group of entry points → kind."""


@dataclass(frozen=True)
class Plugin:
    """One entry point of a distribution; `error` says why it cannot be used, if that is known."""

    kind: str
    name: str
    value: str
    """Module and object, as `package.module:Name`."""
    distribution: str
    version: str
    error: str | None = None

    def load(self) -> Any:
        """Import the object.

        Raises:
            Exception: whatever its module raises.
        """
        return metadata.EntryPoint(self.name, self.value, _ROOT + self.kind).load()


def installed_plugins() -> list[Plugin]:
    """Return the plugins of other distributions, by kind and name; none is imported.

    A distribution whose entry points cannot be read is a plugin without a name, with the error.
    """
    return [plugin for plugin in entries() if plugin.distribution != _DISTRIBUTION]


def entries() -> list[Plugin]:
    """Return the plugins of other distributions and the optional parts of this one; none is imported."""
    plugins: list[Plugin] = []
    seen: set[str] = set()
    for distribution in metadata.distributions():
        try:
            text = distribution.read_text("entry_points.txt")
        except (OSError, UnicodeError):
            continue
        if text is None or _ROOT not in text:
            continue
        name, version = _identity(distribution)
        normal_name = re.sub(r"[-_.]+", "-", name).lower()
        if normal_name not in seen:  # Python imports the first of that name on the path
            seen.add(normal_name)
            plugins += _plugins_of(distribution, name, version)
    return sorted(plugins, key=lambda plugin: (plugin.kind, plugin.name, plugin.distribution))


def plugin_names(kind: Kind) -> list[str]:
    """Return the names that plugins offer of a kind."""
    return sorted({plugin.name for plugin in entries() if plugin.kind == kind and plugin.name})


def own_names(kind: Kind) -> list[str]:
    """Return the names of a kind that this package itself offers."""
    return sorted({plugin.name for plugin in entries() if plugin.kind == kind and plugin.distribution == _DISTRIBUTION})


def plugin_has(kind: Kind, name: object) -> bool:
    """Return True if a plugin offers something of a kind under a name; nothing is imported."""
    return isinstance(name, str) and name in plugin_names(kind)


@dataclass(frozen=True)
class OpenChoices:
    """Annotation of a setting with listed choices that also accepts other names."""

    is_known: Callable[[str], bool]
    """Returns True for a further accepted name."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        def check(value: Any, choices: core_schema.ValidatorFunctionWrapHandler) -> Any:
            try:
                return choices(value)
            except ValidationError:
                if isinstance(value, str) and self.is_known(value):
                    return value
                raise

        # The serializer of a Literal warns about every name that it does not list.
        as_it_is = core_schema.plain_serializer_function_ser_schema(lambda value: value)
        return core_schema.no_info_wrap_validator_function(check, handler(source), serialization=as_it_is)


def choices_or_plugin(kind: Kind) -> OpenChoices:
    """Return the annotation of a setting that also accepts the names of plugins, without importing them."""
    return OpenChoices(lambda name: plugin_has(kind, name))


def load_plugin(kind: Kind, name: str, *, setting: str | None) -> Any | None:
    """Return the object of a plugin by its name, or None without such a plugin.

    Args:
        setting: field whose value is the name, if any.

    Raises:
        UserError: two distributions offer the name, or it cannot be imported.
    """
    plugins = [plugin for plugin in entries() if plugin.kind == kind and plugin.name == name]
    if not plugins:
        return None
    if len(plugins) > 1:
        raise UserError(
            f"{name!r} is offered by {' and '.join(plugin.distribution for plugin in plugins)}: uninstall one of them",
            setting=setting,
        )
    plugin = plugins[0]
    try:
        return plugin.load()
    except Exception as error:  # the plugin's module may fail in any way while it is imported
        raise UserError(
            f"{name!r} of the plugin {plugin.distribution} {plugin.version} cannot be loaded ({plugin.value}): "
            f"{type(error).__name__}: {error}",
            setting=setting,
        ) from error


def load_part(name: str, *, setting: str | None = None) -> Any:
    """Return an optional module of this package, by the name that it has among the `parts`.

    Args:
        setting: the field that asks for it.

    Raises:
        UserError: the module is not installed here, or cannot be imported.
    """
    part = load_plugin("parts", name, setting=setting)
    if part is None:
        raise UserError(f"the part {name!r} of mini-agentic-rl is not installed here", setting=setting)
    return part


def load_object(name: str) -> Any:
    """Return the object `module:name`; the module may be in the working directory, as with `python -m`.

    Raises:
        Exception: there is no such module or name, or importing the module fails.
    """
    module, _, attribute = name.partition(":")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return getattr(import_module(module), attribute)


def object_named(name: str, kind: Kind, *, setting: str, known: str) -> Any:
    """Return the object `module:name` of a user, or a plugin; a class is called without arguments.

    Args:
        kind: the plugins among which a name without a colon is searched.
        setting: name of the setting, for errors.
        known: possible names, as a list in words, for errors.

    Raises:
        UserError: there is none of this name, or it cannot be imported or created.
    """
    plugin = None if ":" in name else load_plugin(kind, name, setting=setting)
    if ":" not in name and plugin is None:
        raise UserError(f"{name!r} is unknown: give {known}{or_plugin(kind)}", setting=setting)
    try:
        loaded = load_object(name) if plugin is None else plugin
        return loaded() if isinstance(loaded, type) else loaded
    except UserError:
        raise
    except Exception as error:  # the user's module may raise anything
        raise UserError(f"{name!r} cannot be loaded: {type(error).__name__}: {error}", setting=setting) from error


def or_plugin(kind: Kind) -> str:
    """Return the names that plugins offer, to end the error message about an unknown name; empty without plugins."""
    names = plugin_names(kind)
    return f" (plugins offer {', '.join(names)})" if names else ""


def _plugins_of(distribution: metadata.Distribution, name: str, version: str) -> Iterable[Plugin]:
    try:
        points: Sequence[metadata.EntryPoint] = list(distribution.entry_points)
    except Exception as error:  # a file that was written by hand
        yield Plugin("", "", "", name, version, f"its entry points cannot be read: {type(error).__name__}: {error}")
        return
    for point in points:
        if point.group in GROUPS:
            yield Plugin(GROUPS[point.group], point.name, point.value, name, version)


def _identity(distribution: metadata.Distribution) -> tuple[str, str]:
    """Return name and version, even if the metadata is damaged."""
    fields: dict[str, str] = {}
    with suppress(Exception):  # as when the file is missing
        fields = {field: str(distribution.metadata[field] or "") for field in ("Name", "Version")}
    unnamed = Path(str(distribution.locate_file("."))).name
    return fields.get("Name") or f"a distribution without a name in {unnamed}", fields.get("Version") or "?"
