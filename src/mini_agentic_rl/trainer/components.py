"""Make the parts, the agent and the data sets of a run from the arguments of `Trainer` and `fit`.

A spec is the part itself, its class, a factory (anything callable that returns one), a dotted path of one of these
("package.module.Name" or "package.module:Name"), a short name where the part has some, or a mapping
`{"type": spec, **keywords}`. Classes and factories are called with the keywords given, and with those of the trainer's
own settings that they name as parameters.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sized
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias, TypeVar, cast

from ..config import LightningEnvVar, refusal, resolve_bool_env_var, resolve_int_env_var, resolve_str_env_var
from ..errors import UserError
from ..execution import ExecutionStrategy, SharedMemoryExecutionStrategy
from ..litagent import LitAgent, rollout
from ..store import InMemoryLightningStore, LightningStore
from ..types import Dataset
from .run_folder import RunFolder

T = TypeVar("T")

Component: TypeAlias = T | type[T] | Callable[..., T] | str | Mapping[str, Any]

STRATEGIES: Final = {
    "shm": "mini_agentic_rl.execution.SharedMemoryExecutionStrategy",
    "cs": "mini_agentic_rl.execution.client_server.ClientServerExecutionStrategy",
    "ray": "mini_agentic_rl.integrations.ray.RayExecutionStrategy",
}
STORES: Final = {
    "memory": "mini_agentic_rl.store.memory.InMemoryLightningStore",
    "sqlite": "mini_agentic_rl.store.sql.SqlLightningStore",
    "sql": "mini_agentic_rl.store.sql.SqlLightningStore",
    "mongo": "mini_agentic_rl.integrations.mongo.MongoLightningStore",
    "client": "mini_agentic_rl.store.LightningStoreClient",
}
DEFAULT_RUNNERS: Final = 8
DEFAULT_SERVER: Final = ("127.0.0.1", 4747)
"""Default host and port of a store server."""

_ALGORITHM_PARTS: Final = (
    *("model", "tokenizer", "lora", "learner", "engine", "limits", "warm_start", "backend", "load_options"),
)
_OTHER_NAMES: Final = {"loggers": "logger", "report_to": "logger"}
_SHOWN_CHARACTERS: Final = 80
_CLIENT_SERVER_VARIABLES: Final = (
    LightningEnvVar.AGL_CURRENT_ROLE,
    LightningEnvVar.AGL_MANAGED_STORE,
    LightningEnvVar.AGL_SERVER_HOST,
    LightningEnvVar.AGL_SERVER_PORT,
)

logger = logging.getLogger(__name__)


class UnknownKeywordError(UserError, TypeError):
    """An unknown keyword. It is a TypeError too, as Python raises for such a call."""


def refuse_unknown_keywords(given: Collection[str], known: Collection[str]) -> None:
    """Check keywords of `Trainer`.

    Raises:
        UnknownKeywordError: a keyword is unknown; the message suggests the right name, or the place of the setting.
    """
    unknown = [name for name in given if name not in known]
    if not unknown:
        return
    from ..algorithm import GRPOSettings, PPOSettings
    from ..policy import LearnerSettings, LoraSettings

    name = unknown[0]
    if name in _OTHER_NAMES:
        raise UnknownKeywordError(f"{name} is no argument of Trainer: here it is `{_OTHER_NAMES[name]}`")
    settings = {*GRPOSettings.model_fields, *PPOSettings.model_fields, *LearnerSettings.model_fields, *_ALGORITHM_PARTS}
    settings.update(LoraSettings.model_fields, (f"lora_{field}" for field in LoraSettings.model_fields))
    suggestion = None if name in settings else refusal(name, known)
    if suggestion is not None:
        raise UnknownKeywordError(f"{suggestion} (an argument of Trainer)")
    if name in settings or refusal(name, settings) is not None:
        advice = "give it to the algorithm, Trainer(algorithm=MiniGRPO(…))"
    else:
        advice = f"it takes {', '.join(known)}"
    raise UnknownKeywordError(f"{name} is no argument of Trainer: {advice}")


def build(
    keyword: str,
    spec: Component[Any] | None,
    kind: type[Any] | None,
    *,
    names: Mapping[str, str] | None = None,
    untyped: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Any:
    """Return the part that `spec` names.

    Args:
        keyword: the trainer's keyword, for messages.
        kind: class of the part; None accepts any object that is no mapping, class or function, which are called.
        names: short name to dotted path.
        untyped: dotted path of the class that a mapping without "type" means; None refuses such a mapping.
        settings: keywords handed to a class or factory that names them, unless the spec gives them itself.

    Raises:
        UserError: the spec names nothing, or something else; the message names the keyword and the spec.
        Exception: whatever the part's own constructor raised.
    """
    part = _make(keyword, spec, kind, names or {}, untyped, settings or {})
    if kind is not None and not isinstance(part, kind):
        _refuse(keyword, spec, f"that is of type {type(part).__name__}, not {kind.__name__}")
    return part


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
    """Return the part that `spec` names, with the arguments and the errors of agent-lightning.

    Args:
        spec: as `build` has it; None means `default_factory`.
        expected_type: class of the part.
        spec_name: name of the spec in errors.
        default_factory: makes the part if `spec` is None.
        allow_none: return None if `spec` is None and nothing makes the part.
        optional_defaults: arguments for a class or factory that names them, or functions that return them.
        dict_requires_type: a mapping must name its class with `type`.
        dict_default_cls: the class of a mapping without `type`.
        type_error_fmt, invalid_spec_error_fmt: accepted without effect: errors name the spec and the expected type.
        registry: short name to dotted path. A mapping may have such a name under `name` in place of its `type`.

    Raises:
        ValueError: there is no such part, or the spec is None and a part is needed.
        TypeError: the part is of another class.
    """
    if spec is None:
        if default_factory is None and not allow_none:
            raise ValueError(f"{spec_name} must be given")
        spec = None if default_factory is None else default_factory()
        if spec is None and allow_none:
            return None
    if isinstance(spec, Mapping) and not spec.get("type"):
        if not dict_requires_type and dict_default_cls is not None:
            spec = {**spec, "type": dict_default_cls}
        elif spec.get("name") in (registry or {}):
            options = {name: value for name, value in spec.items() if name not in ("name", "type")}
            spec = {"type": spec["name"], **options}
    settings = {name: value() if callable(value) else value for name, value in (optional_defaults or {}).items()}
    try:
        part = _make(spec_name, spec, expected_type, registry or {}, None, settings)
    except UserError as error:
        raise ValueError(str(error)) from error
    if not isinstance(part, expected_type):
        raise TypeError(f"{spec_name} must be of type {expected_type.__name__}, not {type(part).__name__}")
    return part


def load(keyword: str, path: str, names: Mapping[str, str] | None = None) -> Any:
    """Import the object of a dotted path or a short name.

    Raises:
        UserError: there is no such object, or its module cannot be imported.
    """
    names = names or {}
    full = names.get(path, path)
    module_name, _, attributes = full.partition(":") if ":" in full else full.rpartition(".")
    if not module_name or not attributes:
        known = f"one of {', '.join(map(repr, names))}, or " if names else ""
        _refuse(keyword, path, f"expected {known}a dotted path like 'package.module.Name'")
    try:
        loaded: Any = import_module(module_name)
    except Exception as error:  # a user's module may fail in any way
        _refuse(keyword, path, f"{module_name} cannot be imported: {type(error).__name__}: {error}", error)
    for attribute in attributes.split("."):
        try:
            loaded = getattr(loaded, attribute)
        except AttributeError as error:
            _refuse(keyword, path, f"{module_name} has no {attributes!r}", error)
    return loaded


def _make(
    keyword: str,
    spec: Any,
    kind: type[Any] | None,
    names: Mapping[str, str],
    untyped: str | None,
    settings: Mapping[str, Any],
) -> Any:
    """Return `spec` if it is an instance of `kind`, else what the class or factory that it names returns."""

    def is_part(value: Any) -> bool:
        if kind is not None:
            return isinstance(value, kind)
        return not isinstance(value, str | Mapping | type) and not inspect.isroutine(value)

    if is_part(spec):
        return spec
    given: dict[str, Any] = {}
    target = spec
    if isinstance(spec, Mapping):
        given = {name: value for name, value in spec.items() if name != "type"}
        target = spec.get("type", untyped)
        if target is None:
            _refuse(keyword, spec, "the mapping has no 'type': a class, a factory, a dotted path or a short name")
    if isinstance(target, str):
        target = load(keyword, target, names)
    expected = "component" if kind is None else kind.__name__
    if is_part(target):
        if given:
            _refuse(keyword, spec, f"{', '.join(given)} cannot be given to a {expected} that exists already")
        return target
    if not callable(target):
        why = f"expected {expected}: itself, its class, a factory, a dotted path or a mapping with 'type'"
        _refuse(keyword, spec, why)
    try:
        signature = inspect.signature(target)
    except ValueError:  # a builtin without a signature
        return target(**given)
    parameters = {
        name
        for name, parameter in signature.parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    keywords = {**{name: value for name, value in settings.items() if name in parameters}, **given}
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
    """Agent and data sets of a run; None where they were not given."""

    agent: LitAgent[Any] | None
    train: Dataset[Any] | None
    val: Dataset[Any] | None


def read_inputs(agent: Any, train: Any, val: Any) -> Inputs:
    """Read the arguments of `fit(agent, train, val)`, which may also be `fit(train)` or `fit(train, val)`.

    An agent is a `LitAgent`, its class, a rollout function, or a dotted path of one.

    Raises:
        UserError: an argument is of the wrong type, a path leads nowhere, or the class needs arguments.
        TypeError: a function does not have the parameters of a rollout.
    """
    chosen: LitAgent[Any] | None = None
    if agent is not None:
        spec = load("agent", agent) if isinstance(agent, str) else agent
        if isinstance(spec, LitAgent) or (isinstance(spec, type) and issubclass(spec, LitAgent)):
            chosen = build("agent", spec, LitAgent)
        elif callable(spec) and not isinstance(spec, Sized):
            chosen = rollout(spec)
        elif train is not None and val is not None:
            raise UserError(f"agent={type(agent).__name__}: an agent is a LitAgent, its class, or a rollout function")
        else:
            train, val = agent, val if train is None else train
    return Inputs(chosen, _as_dataset("train_dataset", train), _as_dataset("val_dataset", val))


def _as_dataset(keyword: str, value: Any) -> Dataset[Any] | None:
    """Return `value` if it is a data set or None.

    Raises:
        UserError: it is neither: it has no length, or is a text, or a mapping of several data sets.
    """
    if value is None or (isinstance(value, Sized) and not isinstance(value, (str, Mapping))):
        return cast("Dataset[Any] | None", value)
    raise UserError(
        f"{keyword}={type(value).__name__}: a data set has a length and rows by index, as a list or a datasets.Dataset"
    )


def make_strategy(
    spec: Component[ExecutionStrategy] | None, *, n_runners: int | None, port: int | None
) -> ExecutionStrategy:
    """Return the strategy; `n_runners` reaches one that is made here, `port` one that was made before as well.

    Raises:
        UserError: `spec` names no strategy.
    """
    if spec is None:
        spec = "cs" if port is not None or asks_for_processes() else "shm"
    settings: dict[str, Any] = {"n_runners": DEFAULT_RUNNERS if n_runners is None else n_runners}
    if port is not None:
        settings["server_port"] = port
    strategy: ExecutionStrategy = build("strategy", spec, ExecutionStrategy, names=STRATEGIES, settings=settings)
    if port is not None and isinstance(strategy, SharedMemoryExecutionStrategy):
        logger.warning("Trainer(port=%d) has no effect: the strategy runs everything in this process", port)
    if port is not None and strategy is spec and strategy.server_port is not None:
        strategy.server_port = port
    count = runners_of(strategy, n_runners)
    if n_runners is not None and n_runners != count:
        logger.warning("Trainer(n_runners=%d) has no effect: the strategy has %d", n_runners, count)
    return strategy


def asks_for_processes() -> bool:
    """Return True if the environment asks for the client-server strategy: each runner is a process of its own."""
    return any(variable.value in os.environ for variable in _CLIENT_SERVER_VARIABLES)


def make_store(spec: Component[LightningStore] | Path | None, folder: RunFolder | None) -> LightningStore | None:
    """Return the store of a trainer; None for the database in `folder`, which each run opens once the folder is ready.

    Args:
        spec: a component, or the URL or file of a store. None takes the server at AGL_SERVER_HOST and AGL_SERVER_PORT
            with AGL_MANAGED_STORE=0; else the database in `folder`, or without one memory.

    Raises:
        UserError: `spec` names no store, or it cannot be opened.
    """
    if spec is None:
        if resolve_bool_env_var(LightningEnvVar.AGL_MANAGED_STORE, fallback=True):
            return InMemoryLightningStore() if folder is None else None
        from ..store import LightningStoreClient

        host = resolve_str_env_var(LightningEnvVar.AGL_SERVER_HOST, fallback=DEFAULT_SERVER[0])
        port = resolve_int_env_var(LightningEnvVar.AGL_SERVER_PORT, fallback=DEFAULT_SERVER[1])
        return LightningStoreClient(f"http://{host}:{port}", api_key=resolve_str_env_var(LightningEnvVar.AGL_API_KEY))
    if folder is not None:
        path = Path(spec.removeprefix("sqlite:///")) if isinstance(spec, str) else spec
        if spec == "sqlite" or (isinstance(path, Path) and path.resolve() == folder.rollouts_path.resolve()):
            return None
    if spec == "sqlite":
        raise UserError("Trainer(store='sqlite') needs output_dir, or the file itself: store='sqlite:///rollouts.db'")
    is_address = isinstance(spec, str) and ("://" in spec or {"/", os.sep} & set(spec) or spec.endswith(".db"))
    if isinstance(spec, Path) or is_address:
        from ..store import open_store

        return open_store(cast("str | Path", spec), api_key=resolve_str_env_var(LightningEnvVar.AGL_API_KEY))
    store: LightningStore = build("store", spec, LightningStore, names=STORES)
    return store


def runs_algorithm(strategy: ExecutionStrategy, *, here: bool = False) -> bool:
    """Return True if this start of the program runs the algorithm, and not runners alone.

    Args:
        here: only if this process does, and has its summary at the end.
    """
    if isinstance(strategy, SharedMemoryExecutionStrategy):
        return True
    from ..execution import ClientServerExecutionStrategy

    if not isinstance(strategy, ClientServerExecutionStrategy):
        return True
    if strategy.role == "both":
        return not here or strategy.main_process == "algorithm"
    return strategy.role == "algorithm"


def runners_of(strategy: ExecutionStrategy, n_runners: int | None) -> int:
    """Return the number of runners of the strategy; a user's own strategy without one has `n_runners`."""
    if strategy.n_runners is not None:
        return strategy.n_runners
    return DEFAULT_RUNNERS if n_runners is None else n_runners
