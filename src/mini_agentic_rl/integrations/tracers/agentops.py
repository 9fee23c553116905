"""`AgentOpsTracer`, agent-lightning's usual tracer, and `AgentFrameworkTracer` for Microsoft's Agent Framework.

They record chat completions that this process requests through the `openai` package and that no gateway records, such
as calls of a judge, so that adapters can read their messages. The methods of the SDK's clients are wrapped once,
without effect outside of a trace of such a tracer. Streamed answers are not recorded.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar, Final

import wrapt
from pydantic import BaseModel

from ...attribution import is_recorded
from ...errors import UserError
from ...semconv import CompletionSpanAttributes
from ...tracer.base import Tracer, get_open_trace
from ...tracer.otel import OtelTracer, init
from ...types import Attributes, SpanRecordingContext

_MODULE: Final = "openai.resources.chat.completions.completions"
_SETTINGS: Final = ("model", "temperature", "top_p", "max_tokens", "max_completion_tokens", "seed")


class AgentOpsTracer(OtelTracer):
    """An `OtelTracer` that also records chat completions of other servers, as the AgentOps SDK does.

    It records calls with the `openai` package that no gateway records, except streamed ones. Calls of the trained model
    are recorded by the gateway, with their tokens. Nothing is sent to AgentOps. After `init` your instrumentation is
    recorded too.

    Args:
        agentops_managed, daemon: ignored.
        instrument_managed: record those calls.
    """

    root_by_hand: ClassVar[bool] = True
    root_attributes: ClassVar[Attributes] = {"agentops.span.kind": "session"}

    def __init__(self, agentops_managed: bool = True, instrument_managed: bool = True, daemon: bool = True) -> None:
        super().__init__()
        self.records_openai_calls = instrument_managed
        if instrument_managed:
            record_openai_calls()


class AgentFrameworkTracer(AgentOpsTracer):
    """A tracer that also records the spans of agents and tools of Microsoft's Agent Framework.

    It turns on the framework's instrumentation and calls `init` for this process.

    Raises:
        UserError: the framework is not installed.
    """

    def __init__(self) -> None:
        super().__init__()
        try:
            observability = import_module("agent_framework.observability")
        except ImportError as error:
            raise UserError(
                "AgentFrameworkTracer needs Microsoft's Agent Framework: pip install agent-framework-core"
            ) from error
        init()
        enable = getattr(observability, "enable_instrumentation", None)
        if enable is not None:
            enable()
        else:  # versions of 2025
            observability.OBSERVABILITY_SETTINGS.enable_otel = True


# Spans of calls through the `openai` package.


_lock = threading.Lock()
_wrapped: list[bool] = []


def record_openai_calls() -> None:
    """Wrap the clients of the `openai` package, once per process."""
    with _lock:
        if _wrapped:
            return
        _wrapped.append(True)
    wrapt.register_post_import_hook(_wrap, _MODULE)


def _wrap(module: ModuleType) -> None:
    for method in ("create", "parse"):
        wrapt.wrap_function_wrapper(module, f"Completions.{method}", _called)
        wrapt.wrap_function_wrapper(module, f"AsyncCompletions.{method}", _called_async)


def _called(wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tracer = _tracer_for(client, kwargs)
    if tracer is None:
        return wrapped(*args, **kwargs)
    with _span(tracer, kwargs) as span:
        answer = wrapped(*args, **kwargs)
        _record(span, answer)
    return answer


async def _called_async(wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tracer = _tracer_for(client, kwargs)
    if tracer is None:
        return await wrapped(*args, **kwargs)
    with _span(tracer, kwargs) as span:
        answer = await wrapped(*args, **kwargs)
        _record(span, answer)
    return answer


def _tracer_for(client: Any, kwargs: Mapping[str, Any]) -> Tracer | None:
    """Return the tracer that records a call; None without one, or if a gateway records the call."""
    trace = get_open_trace()
    if trace is None or not getattr(trace.tracer, "records_openai_calls", False) or kwargs.get("stream"):
        return None
    if is_recorded(str(client._client.base_url)):
        return None
    return trace.tracer if isinstance(trace.tracer, Tracer) else None


@contextmanager
def _span(tracer: Tracer, kwargs: Mapping[str, Any]) -> Iterator[SpanRecordingContext]:
    with tracer.operation_context(CompletionSpanAttributes.SPAN_NAME, _request(kwargs)) as span:
        yield span
        span.record_status("OK")


def _request(kwargs: Mapping[str, Any]) -> Attributes:
    attributes: dict[str, Any] = {
        "gen_ai.request.type": "chat",
        "gen_ai.system": "OpenAI",
        "gen_ai.request.streaming": False,
    }
    for name in _SETTINGS:
        if isinstance(kwargs.get(name), str | int | float):
            attributes[f"gen_ai.request.{name}"] = kwargs[name]
    for number, message in enumerate(_dictionaries(kwargs.get("messages"))):
        _put_message(attributes, f"gen_ai.prompt.{number}", message)
    functions = (tool.get("function") for tool in _dictionaries(kwargs.get("tools")))
    for number, function in enumerate(function for function in functions if isinstance(function, Mapping)):
        for name in ("name", "description", "parameters"):
            _put(attributes, f"gen_ai.request.functions.{number}.{name}", function.get(name))
    return attributes


def _record(span: SpanRecordingContext, answer: Any) -> None:
    """Record an answer, also one that the caller requested with its headers."""
    parse = getattr(answer, "parse", None)
    if parse is not None and not hasattr(answer, "choices"):
        answer = parse()
    if not hasattr(answer, "choices"):
        return
    facts = answer.model_dump(mode="json", exclude_none=True, warnings=False)
    attributes: dict[str, Any] = {}
    for name in ("id", "model", "system_fingerprint"):
        _put(attributes, f"gen_ai.response.{name}", facts.get(name))
    for name, count in (facts.get("usage") or {}).items():
        if isinstance(count, int):
            attributes[f"gen_ai.usage.{name}"] = count
    for number, choice in enumerate(_dictionaries(facts.get("choices"))):
        _put_message(attributes, f"gen_ai.completion.{number}", choice.get("message") or {})
        _put(attributes, f"gen_ai.completion.{number}.finish_reason", choice.get("finish_reason"))
    span.record_attributes(attributes)


def _put_message(attributes: dict[str, Any], prefix: str, message: Mapping[str, Any]) -> None:
    for name in ("role", "content", "tool_call_id"):
        _put(attributes, f"{prefix}.{name}", message.get(name))
    for number, call in enumerate(_dictionaries(message.get("tool_calls"))):
        function = call.get("function") or {}
        facts = {"id": call.get("id"), "type": call.get("type"), **{k: function.get(k) for k in ("name", "arguments")}}
        for name, value in facts.items():
            _put(attributes, f"{prefix}.tool_calls.{number}.{name}", value)


def _put(attributes: dict[str, Any], name: str, value: Any) -> None:
    if value is not None:
        attributes[name] = value if isinstance(value, str | int | float) else json.dumps(value, default=str)


def _dictionaries(items: Any) -> list[Mapping[str, Any]]:
    """Return dictionaries, and models of the SDK as dictionaries; other items are skipped."""
    if not isinstance(items, Sequence) or isinstance(items, str):
        return []
    plain = (_plain(item) for item in items)
    return [item for item in plain if isinstance(item, Mapping)]


def _plain(item: Any) -> Any:
    return item.model_dump(exclude_none=True, warnings=False) if isinstance(item, BaseModel) else item
