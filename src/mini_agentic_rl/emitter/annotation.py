"""Emit annotations, and operations: spans around a piece of work with its inputs and output."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, TypeVar, overload

from ..semconv import AGL_ANNOTATION, AGL_OPERATION, LightningSpanAttributes
from ..tracer import FlatSpan, around
from ..types import Attributes, SpanCoreFields, SpanRecordingContext
from .emit import OK, Links, Tags, described, emit, flatten, require_tracer

FuncT = TypeVar("FuncT", bound=Callable[..., Any])

_NAME = LightningSpanAttributes.OPERATION_NAME.value
_INPUT = LightningSpanAttributes.OPERATION_INPUT.value
_OUTPUT = LightningSpanAttributes.OPERATION_OUTPUT.value


def emit_annotation(
    annotation: dict[str, Any], propagate: bool = True, *, links: Links | None = None, tags: Tags | None = None
) -> SpanCoreFields:
    """Record facts about the rollout. Nested mappings become dotted names.

    `links` name the spans that the facts are about (`{"gen_ai.response.id": "resp-1"}`), `tags` are words to find them
    by.
    """
    return emit(AGL_ANNOTATION, described(annotation, links, tags), propagate, OK)


class OperationContext:
    """Span around a piece of work: a context manager, or a decorator that records arguments and result.

    Use it as `with operation(name="search") as op:`.
    """

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
        """Return what has been recorded so far."""
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
        """Decorate a function; each call is an operation of its own.

        Raises:
            TypeError: a generator function, whose work happens outside its call.
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

    The name is that of the function unless given. Other keyword arguments become attributes of the span. An operation
    with the attribute `gen_ai.agent.name` names the agent that makes the LLM calls inside it. `links` and `tags` are
    those of `emit_annotation`; the span has them under these two names as well.

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
        around: makes the context from the arguments of the call; its value is called with the result.
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
