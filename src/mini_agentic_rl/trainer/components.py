"""Make the parts, the agent and the data sets of a run from the ways in which people write them down.

A spec is the part itself, its class, a factory (anything callable that returns one), a dotted path of one of these
("package.module.Name" or "package.module:Name"), a short name where the part has some, or a mapping
`{"type": spec, **keywords}`. Classes and factories are called with the keywords given, and with those of the trainer's
own settings that they name as parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence, Sized
from importlib import import_module
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeVar, cast

from ..errors import UserError
from ..litagent import LitAgent, rollout
from ..types import Dataset

T = TypeVar("T")

Component: TypeAlias = T | type[T] | Callable[..., T] | str | Mapping[str, Any]

_SHOWN_CHARACTERS = 80


def build(
    keyword: str,
    spec: Component[Any],
    kind: type[Any],
    *,
    names: Mapping[str, str] | None = None,
    untyped: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Any:
    """The part that `spec` names.

    Args:
        keyword: the trainer's keyword, for messages.
        kind: what the part has to be an instance of.
        names: short name to dotted path.
        untyped: dotted path of the class that a mapping without "type" means; None refuses such a mapping.
        settings: keywords handed to a class or factory that names them, unless the spec gives them itself.

    Raises:
        UserError: the spec names nothing, or something else; the message names the keyword and what was given.
        Exception: whatever the part's own constructor raised.
    """
    made = _make(keyword, spec, kind, names or {}, untyped, settings or {})
    if not isinstance(made, kind):
        _refuse(keyword, spec, f"that is of type {type(made).__name__}, not {kind.__name__}")
    return made


def build_any(keyword: str, spec: Any, *, untyped: str | None = None, settings: Mapping[str, Any] | None = None) -> Any:
    """As `build` for a part of any type: only classes and functions are called, another object is the part itself."""
    if isinstance(spec, str):
        spec = load(keyword, spec)
    if isinstance(spec, (Mapping, type)) or inspect.isroutine(spec):
        return _make(keyword, spec, None, {}, untyped, settings or {})
    return spec


def build_component(
    spec: Any,
    *,
    expected_type: type[T],
    spec_name: str,
    default_factory: Callable[[], T] | None = None,
    allow_none: bool = False,
    optional_defaults: Mapping[str, Any] | None = None,
    dict_requires_type: bool = True,
    dict_default_cls: type[T] | None = None,
    type_error_fmt: str | None = None,
    invalid_spec_error_fmt: str | None = None,
    registry: Mapping[str, str] | None = None,
) -> T | None:
    """As `build`, for parts of one's own, with the arguments and the errors of agent-lightning.

    Args:
        spec: what was written down; None means `default_factory`.
        expected_type: the class that the part has to be of.
        spec_name: what errors call it.
        default_factory: makes the part where nothing was written down.
        allow_none: return None where nothing was written down and nothing makes the part.
        optional_defaults: arguments for a class or factory that names them, or functions that return them.
        dict_requires_type: whether a mapping must name its class with `type`.
        dict_default_cls: the class of a mapping that need not, and does not.
        type_error_fmt, invalid_spec_error_fmt: taken, and of no effect: errors say what was given and what is needed.
        registry: short name to dotted path. A mapping may have such a name under `name` in place of its `type`.

    Raises:
        ValueError: there is no such part, or nothing was written down and something is needed.
        TypeError: the part is of another class.
    """
    if spec is None:
        if default_factory is None and not allow_none:
            raise ValueError(f"{spec_name} must be given")
        spec = None if default_factory is None else default_factory()
        if spec is None and allow_none:
            return None
    if isinstance(spec, Mapping) and not spec.get("type") and not dict_requires_type and dict_default_cls is not None:
        spec = {**spec, "type": dict_default_cls}
    if isinstance(spec, Mapping) and not spec.get("type") and spec.get("name") in (registry or {}):
        spec = {"type": spec["name"], **{name: value for name, value in spec.items() if name not in ("name", "type")}}
    settings = {name: value() if callable(value) else value for name, value in (optional_defaults or {}).items()}
    try:
        made = _make(spec_name, spec, expected_type, registry or {}, None, settings)
    except UserError as error:
        raise ValueError(str(error)) from error
    if not isinstance(made, expected_type):
        raise TypeError(f"{spec_name} must be of type {expected_type.__name__}, not {type(made).__name__}")
    return made


def build_all(keyword: str, specs: Component[Any] | Sequence[Component[Any]], kind: type[Any]) -> list[Any]:
    """One part or several, in order.

    Raises:
        UserError: as `build`.
    """
    several = list(specs) if isinstance(specs, Sequence) and not isinstance(specs, str) else [specs]
    return [build(keyword, spec, kind) for spec in several]


def load(keyword: str, path: str, names: Mapping[str, str] | None = None) -> Any:
    """Import what a dotted path or a short name stands for.

    Raises:
        UserError: there is no such thing, or its module cannot be imported.
    """
    names = names or {}
    full = names.get(path, path)
    module_name, _, attributes = full.partition(":") if ":" in full else full.rpartition(".")
    if not module_name or not attributes:
        known = f"one of {', '.join(map(repr, names))}, or " if names else ""
        _refuse(keyword, path, f"expected {known}a dotted path like 'package.module.Name'")
    try:
        found: Any = import_module(module_name)
    except Exception as error:  # a module of the user's may fail in any way
        _refuse(keyword, path, f"{module_name} cannot be imported: {type(error).__name__}: {error}", error)
    for attribute in attributes.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError as error:
            _refuse(keyword, path, f"{module_name} has no {attributes!r}", error)
    return found


def _make(
    keyword: str,
    spec: Any,
    kind: type[Any] | None,
    names: Mapping[str, str],
    untyped: str | None,
    settings: Mapping[str, Any],
) -> Any:
    """`spec`, made once: an instance stays what it is, whatever can be called is called."""
    given: dict[str, Any] = {}
    target = spec
    if kind is not None and isinstance(spec, kind):
        return spec
    if isinstance(spec, Mapping):
        given = {name: value for name, value in spec.items() if name != "type"}
        target = spec.get("type", untyped)
        if target is None:
            _refuse(keyword, spec, "the mapping has no 'type': a class, a factory, a dotted path or a short name")
    if isinstance(target, str):
        target = load(keyword, target, names)
    if kind is not None and isinstance(target, kind):
        if given:
            _refuse(keyword, spec, f"{', '.join(given)} cannot be given to a {kind.__name__} that exists already")
        return target
    if not callable(target):
        expected = "a component" if kind is None else kind.__name__
        _refuse(
            keyword,
            spec,
            f"expected {expected}: itself, its class, a factory, a dotted path or a mapping with 'type'",
        )
    return _call(keyword, spec, target, given, settings)


def _call(
    keyword: str, spec: Any, target: Callable[..., Any], given: dict[str, Any], settings: Mapping[str, Any]
) -> Any:
    try:
        signature = inspect.signature(target)
    except ValueError:  # builtins that tell nothing of their parameters
        return target(**given)
    named = {
        name
        for name, parameter in signature.parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    keywords = {**{name: value for name, value in settings.items() if name in named}, **given}
    try:
        signature.bind(**keywords)
    except TypeError as error:
        label = getattr(target, "__qualname__", type(target).__name__)
        _refuse(keyword, spec, f"{label} cannot be made like this: {error}", error)
    return target(**keywords)


def _refuse(keyword: str, spec: Any, why: str, cause: Exception | None = None) -> NoReturn:
    shown = repr(spec)
    if len(shown) > _SHOWN_CHARACTERS:
        shown = f"{shown[:_SHOWN_CHARACTERS]}…"
    raise UserError(f"Trainer({keyword}={shown}): {why}") from cause


class Inputs(NamedTuple):
    """Agent and data sets of a run; None where nothing was said."""

    agent: LitAgent[Any] | None
    train: Dataset[Any] | None
    val: Dataset[Any] | None

    def filled_from(self, others: Inputs) -> Inputs:
        """Return these, with those of `others` where there are none."""
        return Inputs(
            others.agent if self.agent is None else self.agent,
            others.train if self.train is None else self.train,
            others.val if self.val is None else self.val,
        )


def read_inputs(agent: Any, train: Any, val: Any) -> Inputs:
    """Read the arguments of `fit(agent, train, val)`, which may also be `fit(train)` or `fit(train, val)`.

    Raises:
        UserError: one of them is not what its place is for.
        TypeError: a function that does not have the parameters of a rollout.
    """
    chosen = None if agent is None else as_agent(agent)
    if agent is not None and chosen is None:
        if train is not None and val is not None:
            raise UserError(f"agent={type(agent).__name__}: an agent is a LitAgent, its class, or a rollout function")
        train, val = agent, val if train is None else train
    return Inputs(chosen, as_dataset("train_dataset", train), as_dataset("val_dataset", val))


def as_agent(spec: Any) -> LitAgent[Any] | None:
    """Return the agent that `spec` is: a LitAgent, its class, a rollout function, or a dotted path of one; else None.

    Raises:
        UserError: a path leads nowhere, or the class needs arguments.
        TypeError: a function that does not have the parameters of a rollout.
    """
    if isinstance(spec, str):
        spec = load("agent", spec)
    if isinstance(spec, LitAgent):
        return spec
    if isinstance(spec, type) and issubclass(spec, LitAgent):
        agent: LitAgent[Any] = build("agent", spec, LitAgent)
        return agent
    return rollout(spec) if callable(spec) and not isinstance(spec, Sized) else None


def as_dataset(keyword: str, value: Any) -> Dataset[Any] | None:
    """Return the data set that `value` is.

    Raises:
        UserError: it is none: no length, a text, or a mapping of several data sets.
    """
    if value is None or (isinstance(value, Sized) and not isinstance(value, (str, Mapping))):
        return cast("Dataset[Any] | None", value)
    raise UserError(
        f"{keyword}={type(value).__name__}: a data set has a length and rows by index, as a list or a datasets.Dataset"
    )
