"""Emit annotations, exceptions, messages, objects and operations as spans, and read messages and objects back."""

from __future__ import annotations

import base64
import functools
import inspect
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, Final, TypeVar, overload

from pydantic import BaseModel

from ..semconv import AGL_ANNOTATION, AGL_EXCEPTION, AGL_MESSAGE, AGL_OBJECT, AGL_OPERATION, LightningSpanAttributes
from ..tracer import FlatSpan, Tracer, around, exception_facts, get_active_tracer
from ..types import Attributes, SpanCoreFields, SpanRecordingContext, TraceStatus
from .attributes import SpanLike, make_link_attributes, make_tag_attributes

logger = logging.getLogger(__name__)

Links = Mapping[str, Any]
Tags = Iterable[str]

OK: Final = TraceStatus(status_code="OK")
"""Status of annotations, rewards and objects."""

_SCALARS = (str, bool, int, float)


def require_tracer(what: str) -> Tracer:
    """Return the active tracer.

    Raises:
        RuntimeError: there is none in this task.
    """
    tracer = get_active_tracer()
    if tracer is None:
        raise RuntimeError(
            f"{what} has no active tracer: call it inside a rollout or trace_context(), or pass propagate=False. "
            "A thread of your own must run inside contextvars.copy_context()"
        )
    return tracer


def described(attributes: Mapping[str, Any] | None, links: Links | None, tags: Tags | None) -> Attributes:
    """Return flat attributes, with links to other spans and tags."""
    return {**flatten(attributes or {}), **make_link_attributes(links or {}), **make_tag_attributes(tags or ())}


def emit(name: str, attributes: Attributes, propagate: bool, status: TraceStatus | None = None) -> SpanCoreFields:
    """Make a span of this instant, and record it in the open trace if `propagate`."""
    if propagate:
        return require_tracer(name).create_span(name, attributes, status=status)
    now, status = time.time(), (status or OK).model_copy()
    return SpanCoreFields(name=name, attributes=attributes, status=status, start_time=now, end_time=now)


def flatten(values: Mapping[str, Any]) -> Attributes:
    """Turn nested mappings and lists of mappings into attributes with dotted names.

    None is left out; a value that OpenTelemetry does not accept becomes JSON text.
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


def emit_exception(
    exception: BaseException,
    attributes: dict[str, Any] | None = None,
    propagate: bool = True,
    *,
    links: Links | None = None,
    tags: Tags | None = None,
) -> SpanCoreFields:
    """Record type, message and stack of an exception as a span with status ERROR.

    Raises:
        TypeError: `exception` is no exception.
    """
    if not isinstance(exception, BaseException):
        raise TypeError(f"emit_exception takes an exception, not {type(exception).__name__}")
    status = TraceStatus(status_code="ERROR", description=f"{type(exception).__name__}: {exception}")
    return emit(AGL_EXCEPTION, {**described(attributes, links, tags), **exception_facts(exception)}, propagate, status)


def emit_message(
    message: str,
    attributes: dict[str, Any] | None = None,
    propagate: bool = True,
    *,
    links: Links | None = None,
    tags: Tags | None = None,
) -> SpanCoreFields:
    """Record a text.

    Raises:
        TypeError: the message is no string.
    """
    if not isinstance(message, str):
        raise TypeError(f"emit_message takes a string, not {type(message).__name__}: use emit_object for anything else")
    body = {LightningSpanAttributes.MESSAGE_BODY.value: message}
    return emit(AGL_MESSAGE, {**described(attributes, links, tags), **body}, propagate)


def emit_object(
    object: Any,
    attributes: dict[str, Any] | None = None,
    propagate: bool = True,
    *,
    links: Links | None = None,
    tags: Tags | None = None,
) -> SpanCoreFields:
    """Record a value, which `get_object_value` reads.

    Raises:
        RuntimeError: the value is neither bytes nor JSON.
    """
    return emit(AGL_OBJECT, {**described(attributes, links, tags), **_encode(object)}, propagate, OK)


def _encode(value: Any) -> Attributes:
    kind, literal = LightningSpanAttributes.OBJECT_TYPE.value, LightningSpanAttributes.OBJECT_LITERAL.value
    if isinstance(value, str | bool | int | float):
        return {kind: type(value).__name__, literal: str(value)}
    if isinstance(value, bytes):
        return {kind: "bytes", literal: base64.b64encode(value).decode("ascii")}
    try:
        text = json.dumps(value)
    except (TypeError, ValueError) as error:
        raise RuntimeError(f"emit_object takes bytes or a JSON value, not {type(value).__name__}: {error}") from error
    return {kind: type(value).__name__, LightningSpanAttributes.OBJECT_JSON.value: text}


def emit_trainable_agent(agent_id: str) -> None:
    """Record in the open trace that an agent is marked as trainable; without a trace, log a warning.

    `Rollout.mark_agent_as_trainable` calls it.
    """
    if get_active_tracer() is None:
        logger.warning("agent %r is marked outside of its rollout: no span records it", agent_id)
        return
    emit(AGL_ANNOTATION, {LightningSpanAttributes.TRAINABLE_AGENT.value: agent_id}, propagate=True)


FuncT = TypeVar("FuncT", bound=Callable[..., Any])

_NAME = LightningSpanAttributes.OPERATION_NAME.value
_INPUT = LightningSpanAttributes.OPERATION_INPUT.value
_OUTPUT = LightningSpanAttributes.OPERATION_OUTPUT.value


def emit_annotation(
    annotation: dict[str, Any], propagate: bool = True, *, links: Links | None = None, tags: Tags | None = None
) -> SpanCoreFields:
    """Record facts about the rollout.

    Args:
        annotation: the facts; nested mappings become dotted names.
        propagate: False only returns the span.
        links: the spans that the facts are about, as `{"gen_ai.response.id": "resp-1"}`.
        tags: words by which the span can be found.
    """
    return emit(AGL_ANNOTATION, described(annotation, links, tags), propagate, OK)


class OperationContext:
    """Span around a block (`with operation(name="search") as op:`) or around the calls of a decorated function."""

    def __init__(self, name: str | None, attributes: Attributes, propagate: bool) -> None:
        self.name = name
        self._attributes = attributes
        self._propagate = propagate
        self._context: AbstractContextManager[SpanRecordingContext] | None = None
        self._recording: SpanRecordingContext | None = None

    def __enter__(self) -> OperationContext:
        attributes = {_NAME: self.name or "operation", **self._attributes}
        if self._propagate:
            self._context = require_tracer(AGL_OPERATION).operation_context(AGL_OPERATION, attributes)
        else:
            self._context = around(FlatSpan(None, AGL_OPERATION, attributes, time.time()))
        self._recording = self._context.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> bool | None:
        assert self._context is not None  # entered
        return self._context.__exit__(kind, error, stack)

    def span(self) -> SpanCoreFields:
        """Return the fields that have been recorded so far."""
        return self._open().get_recorded_span()

    def set_input(self, *args: Any, **kwargs: Any) -> None:
        """Record inputs as `agentlightning.operation.input.args.N` and `agentlightning.operation.input.NAME`."""
        named = {f"{_INPUT}.args.{index}": value for index, value in enumerate(args)}
        named.update({f"{_INPUT}.{name}": value for name, value in kwargs.items()})
        self._open().record_attributes(flatten(named))

    def set_output(self, output: Any) -> None:
        """Record the result as `agentlightning.operation.output`."""
        self._open().record_attributes(flatten({_OUTPUT: output}))

    def __call__(self, func: FuncT) -> FuncT:
        """Decorate a function: each call becomes an operation with its arguments and its result.

        Raises:
            TypeError: the function is a generator function, which runs after its call.
        """
        if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
            raise TypeError(f"operation cannot decorate the generator function {func.__name__}: use it in a with block")
        signature = inspect.signature(func)

        @contextmanager
        def recorded(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Callable[[Any], None]]:
            with OperationContext(self.name or func.__name__, self._attributes, self._propagate) as op:
                op.set_input(**signature.bind(*args, **kwargs).arguments)
                yield op.set_output

        return wrap_calls(func, recorded)

    def _open(self) -> SpanRecordingContext:
        if self._recording is None:
            raise RuntimeError("the operation has not begun: use it as `with operation(...) as op:`")
        return self._recording


@overload
def operation(
    fn: FuncT,
    *,
    propagate: bool = True,
    links: Links | None = None,
    tags: Tags | None = None,
    **additional_attributes: Any,
) -> FuncT: ...
@overload
def operation(
    fn: None = None,
    *,
    name: str | None = None,
    propagate: bool = True,
    links: Links | None = None,
    tags: Tags | None = None,
    **additional_attributes: Any,
) -> OperationContext: ...
def operation(
    fn: FuncT | None = None,
    *,
    name: str | None = None,
    propagate: bool = True,
    links: Links | None = None,
    tags: Tags | None = None,
    **additional_attributes: Any,
) -> FuncT | OperationContext:
    """Put a span around a function (`@operation`, `@operation(name=...)`) or a block (`with operation(...) as op:`).

    Args:
        fn: the function that is decorated.
        name: name of the operation; None takes that of the function.
        propagate: False records the span nowhere.
        links: as in `emit_annotation`; the span has them as attributes `links` too.
        tags: as in `emit_annotation`; the span has them as attributes `tags` too.
        additional_attributes: attributes of the span. `gen_ai.agent.name` names the agent of the LLM calls inside.

    Raises:
        ValueError: `fn` is no function, or the operation is named twice.
        TypeError: a tag is no string.
    """
    if fn is not None and not callable(fn):
        raise ValueError(f"operation decorates a function, it does not take {fn!r}: use operation(name=...)")
    if name is not None and _NAME in additional_attributes:
        raise ValueError(f"the operation is named twice: name={name!r} and {_NAME}={additional_attributes[_NAME]!r}")
    words = None if tags is None or isinstance(tags, str) else list(tags)
    given = flatten({"links": links, "tags": tags if words is None else words})
    attributes = {**given, **described(additional_attributes, links, words)}
    context = OperationContext(name, attributes, propagate)
    return context if fn is None else context(fn)


def wrap_calls(
    func: FuncT, around: Callable[[tuple[Any, ...], dict[str, Any]], AbstractContextManager[Callable[[Any], None]]]
) -> FuncT:
    """Wrap a function, sync or async, so that each call runs inside a context.

    Args:
        func: the function.
        around: makes the context from the arguments of the call; the value of the context is called with the result.
    """
    if inspect.iscoroutinefunction(func):

        @functools.wraps(func)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            with around(args, kwargs) as take_result:
                result = await func(*args, **kwargs)
                take_result(result)
            return result

        return call_async  # type: ignore[return-value]  # same signature as func

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        with around(args, kwargs) as take_result:
            result = func(*args, **kwargs)
            take_result(result)
        return result

    return call  # type: ignore[return-value]  # same signature as func


def get_message_value(span: SpanLike) -> str | None:
    """Return the text of an emitted message; None for another span."""
    body = (span.attributes or {}).get(LightningSpanAttributes.MESSAGE_BODY.value)
    return None if body is None else str(body)


def get_object_value(span: SpanLike) -> Any:
    """Return the emitted object; None for another span.

    Raises:
        RuntimeError: the span's type is unknown or its JSON does not parse.
        ValueError: its literal is not of its type.
    """
    attributes = span.attributes or {}
    text = attributes.get(LightningSpanAttributes.OBJECT_JSON.value)
    if text is not None:
        try:
            return json.loads(text)
        except (TypeError, ValueError) as error:
            raise RuntimeError(f"the object of span {span.name!r} is no JSON: {error}") from error
    literal = attributes.get(LightningSpanAttributes.OBJECT_LITERAL.value)
    if literal is None:
        return None
    kind = attributes.get(LightningSpanAttributes.OBJECT_TYPE.value, "str")
    match kind:
        case "str":
            return str(literal)
        case "int":
            return int(literal)
        case "float":
            return float(literal)
        case "bool":
            return str(literal).lower() == "true"
        case "bytes":
            return base64.b64decode(literal)
        case _:
            raise RuntimeError(f"span {span.name!r} holds a literal of unknown type {kind!r}")


def find_trainable_agents(spans: Iterable[SpanLike]) -> list[str]:
    """Return the agents that are marked as trainable, in the order of the spans."""
    key = LightningSpanAttributes.TRAINABLE_AGENT.value
    names = [str((span.attributes or {})[key]) for span in spans if key in (span.attributes or {})]
    return list(dict.fromkeys(names))
