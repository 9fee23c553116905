"""`plugins`: what other distributions offer to this package, and why one of it cannot be used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, ClassVar, get_args

from ..algorithm import LOSSES, PRESETS
from ..config import JsonSettings
from ..metrics import LOGGERS
from ..plugins import Plugin, entries, installed_plugins, own_names
from ..rewards import NAMES as REWARDS
from ..samplers import SamplerSettings


class PluginSettings(JsonSettings):
    """The settings of `plugins`."""

    helps: ClassVar[Mapping[str, str]] = {"json_output": "Print what was found as JSON."}


def plugins_job(settings: PluginSettings) -> dict[str, Any]:
    """Import every plugin that is installed, and return `plugins`: each with its kind, name, object, distribution and
    version, and as `error` the reason why it cannot be used, None where it can."""
    every = entries()
    return {"plugins": [asdict(_tried(plugin, every)) for plugin in installed_plugins()]}


def _tried(plugin: Plugin, every: Iterable[Plugin]) -> Plugin:
    """Return the plugin with its error, if it has one."""
    if plugin.error is not None:
        return plugin
    if plugin.name in _built_in(plugin.kind):
        return replace(plugin, error="the name is built in, and means what is built in")
    others = [one.distribution for one in every if (one.kind, one.name) == (plugin.kind, plugin.name)]
    if len(others) > 1:
        return replace(plugin, error=f"offered by {' and '.join(others)}: uninstall one of them")
    try:
        plugin.load()
    except Exception as error:  # the plugin's module may fail in any way while it is imported
        return replace(plugin, error=f"{type(error).__name__}: {error}")
    return plugin


def _built_in(kind: str) -> Iterable[str]:
    """Return the names of a kind that this package offers itself, which no plugin replaces."""
    recipes = own_names("recipes")
    names: Mapping[str, Iterable[str]] = {
        "agents": recipes,
        "environments": recipes,
        "rewards": REWARDS,
        "datasets": recipes,
        "losses": {*LOSSES, *PRESETS},
        "samplers": get_args(SamplerSettings.model_fields["sampler"].annotation),
        "loggers": LOGGERS,
    }
    return names.get(kind, ())
