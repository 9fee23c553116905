"""Attributes of spans: nested and flat values, links and tags, and the values that OpenTelemetry accepts.

A link is a pair (key, value) and refers to every span whose attribute `key` has that value. The keys `span_id` and
`trace_id` refer to the ids of the span. Several links refer to the spans that match all of them.

The module has the functions of `agentlightning.utils.otel`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from opentelemetry import trace as otel
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

from ..semconv import LightningSpanAttributes, LinkPydanticModel
from ..tracer import OtelTracer, exception_facts, get_active_tracer
from ..types import Attributes, AttributeValue, Span

logger = logging.getLogger(__name__)

_LINK = LightningSpanAttributes.LINK.value
_TAG = LightningSpanAttributes.TAG.value
_LINK_KEY = re.compile(re.escape(_LINK) + r"\.(\d+)\.key_match")
_TAG_KEY = re.compile(re.escape(_TAG) + r"\.(\d+)")


class SpanLike(Protocol):
    """A `Span`, an OpenTelemetry `ReadableSpan` or `SpanCoreFields`."""

    @property
    def name(self) -> str: ...
    @property
    def attributes(self) -> Mapping[str, Any] | None: ...


SpanT = TypeVar("SpanT", bound=SpanLike)


SpanLink = LinkPydanticModel


def make_link_attributes(links: Mapping[str, Any]) -> Attributes:
    """Return the attributes of a span that refers to the spans with `links`: `{"gen_ai.response.id": "resp-1"}`.

    Raises:
        ValueError: a value is no string, number or bool.
    """
    flat: Attributes = {}
    for number, (key, value) in enumerate(links.items()):
        if not isinstance(value, str | int | float):
            raise ValueError(f"the link {key!r} must have a plain value, not {type(value).__name__}")
        flat[f"{_LINK}.{number}.key_match"] = str(key)
        flat[f"{_LINK}.{number}.value_match"] = str(value)
    return flat


def make_tag_attributes(tags: Iterable[str]) -> Attributes:
    """Return the attributes of a span with these tags.

    Raises:
        TypeError: `tags` is one string, or a tag is no string.
    """
    words = [tags] if isinstance(tags, str) else list(tags)
    if isinstance(tags, str) or not all(isinstance(word, str) for word in words):
        raise TypeError(f"tags must be a list of strings, not {tags!r}")
    return {f"{_TAG}.{number}": word for number, word in enumerate(words)}


def extract_links_from_attributes(attributes: Mapping[str, Any]) -> list[SpanLink]:
    """Return the links of a span, in their order."""
    numbers = sorted(int(match[1]) for key in attributes if (match := _LINK_KEY.fullmatch(key)))
    return [
        SpanLink(
            key_match=str(attributes[f"{_LINK}.{number}.key_match"]),
            value_match=str(attributes.get(f"{_LINK}.{number}.value_match", "")),
        )
        for number in numbers
    ]


def extract_tags_from_attributes(attributes: Mapping[str, Any]) -> list[str]:
    """Return the tags of a span, in their order."""
    numbers = sorted(int(match[1]) for key in attributes if (match := _TAG_KEY.fullmatch(key)))
    return [str(attributes[f"{_TAG}.{number}"]) for number in numbers]


def query_linked_spans(spans: Sequence[SpanT], links: Sequence[SpanLink]) -> list[SpanT]:
    """Return the spans that match every link, in the order given; without links all of them."""
    return [span for span in spans if all(_matches(span, link) for link in links)]


def _matches(span: SpanLike, link: SpanLink) -> bool:
    ids = _ids(span)
    if link.key_match in ids:
        return ids[link.key_match] == link.value_match
    value = (span.attributes or {}).get(link.key_match)
    return value is not None and str(value) == link.value_match


def _ids(span: SpanLike) -> dict[str, str]:
    if isinstance(span, Span):
        return {"span_id": span.span_id, "trace_id": span.trace_id}
    context = span.get_span_context() if isinstance(span, ReadableSpan) else None
    if context is None:
        return {}
    return {"span_id": f"{context.span_id:016x}", "trace_id": f"{context.trace_id:032x}"}


_SCALARS = (str, bool, int, float)


def full_qualified_name(obj: type) -> str:
    """Return the name of a class with its module; built-in classes without one."""
    return obj.__qualname__ if obj.__module__ == "builtins" else f"{obj.__module__}.{obj.__qualname__}"


def get_tracer_provider(inspect: bool = True) -> TracerProvider:
    """Return the provider of the active tracer, else that of the process; `inspect` logs it at DEBUG.

    Raises:
        RuntimeError: there is no provider of the OpenTelemetry SDK.
    """
    active = get_active_tracer()
    provider = active.provider if isinstance(active, OtelTracer) else otel.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        raise RuntimeError("this process has no tracer provider: call mini_agentic_rl.init() first")
    if inspect:
        logger.debug("tracer provider: %r", provider)
    return provider


def get_tracer(use_active_span_processor: bool = True) -> otel.Tracer:
    """Return an OpenTelemetry tracer of the process's provider.

    Args:
        use_active_span_processor: False makes spans that reach no exporter.

    Raises:
        RuntimeError: as `get_tracer_provider`.
    """
    provider = get_tracer_provider()
    if not use_active_span_processor:
        provider = TracerProvider(sampler=provider.sampler, resource=provider.resource)
    return provider.get_tracer("agentlightning")


def filter_attributes(attributes: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the attributes that are named `prefix` or begin with `prefix` and a dot."""
    return {key: value for key, value in attributes.items() if key == prefix or key.startswith(f"{prefix}.")}


def filter_and_unflatten_attributes(attributes: Mapping[str, Any], prefix: str) -> dict[str, Any] | list[Any]:
    """Return the attributes below `prefix`, nested.

    Raises:
        ValueError: an attribute is named `prefix` itself.
    """
    below = filter_attributes(attributes, prefix)
    if prefix in below:
        raise ValueError(f"the attribute {prefix!r} is a value itself: no attribute can be nested in it")
    return unflatten_attributes({key[len(prefix) + 1 :]: value for key, value in below.items()})


def flatten_attributes(
    nested_data: Mapping[str, Any] | list[Any], *, expand_leaf_lists: bool = False
) -> dict[str, Any]:
    """Return nested mappings and lists as attributes with dotted names: `{"a": {"b": [1]}}` as `{"a.b": [1]}`.

    Args:
        nested_data: the nested values.
        expand_leaf_lists: number the items of every list (`a.b.0`), not only of lists with several types.

    Raises:
        ValueError: a key is no string.
    """
    flat: dict[str, Any] = {}

    def walk(value: Any, name: str) -> None:
        if isinstance(value, Mapping):
            for key, item in value.items():
                if not isinstance(key, str):
                    raise ValueError(f"the key {key!r} of {name or 'the attributes'} is no string")
                walk(item, f"{name}.{key}" if name else key)
        elif isinstance(value, list) and not (name and not expand_leaf_lists and _is_leaf(value)):
            for index, item in enumerate(value):
                walk(item, f"{name}.{index}" if name else str(index))
        else:
            flat[name] = value

    walk(nested_data, "")
    return flat


def _is_leaf(values: list[Any]) -> bool:
    return bool(values) and type(values[0]) in _SCALARS and len({type(value) for value in values}) == 1


def unflatten_attributes(flat_data: Mapping[str, Any]) -> dict[str, Any] | list[Any]:
    """Return attributes with dotted names as nested values; the keys 0, 1, 2 … without a gap become a list."""
    root: dict[str, Any] = {}
    for name, value in flat_data.items():
        *way, last = name.split(".")
        level = root
        for part in way:
            below = level.get(part)
            if not isinstance(below, dict):
                below = level[part] = {}
            level = below
        level[last] = value
    nested: dict[str, Any] | list[Any] = _with_lists(root)
    return nested


def _with_lists(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    made = {key: _with_lists(value) for key, value in node.items()}
    numbered = [str(index) for index in range(len(made))]
    return [made[key] for key in numbered] if made and set(made) == set(numbered) else made


def sanitize_attribute_value(object: Any, force: bool = True) -> AttributeValue:
    """Return a value that OpenTelemetry accepts: the value itself, or its JSON text.

    Args:
        object: any value.
        force: replace parts that are not JSON by their `str`.

    Raises:
        ValueError: the value is not JSON, and `force` is not set.
    """
    if isinstance(object, _SCALARS):
        return object
    if isinstance(object, list) and object:
        try:
            return sanitize_list_attribute_sanity(object)
        except ValueError:
            logger.debug("a list of several types is kept as JSON text")
    try:
        return json.dumps(object, default=str if force else None)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{type(object).__name__} is not JSON: {error}") from error


def sanitize_attributes(attributes: Mapping[str, Any], force: bool = True) -> Attributes:
    """Return the attributes with values that OpenTelemetry accepts.

    Raises:
        ValueError: as `sanitize_attribute_value`; the message names the attribute.
    """
    sane: Attributes = {}
    for key, value in attributes.items():
        try:
            sane[key] = sanitize_attribute_value(value, force=force)
        except ValueError as error:
            raise ValueError(f"attribute {key!r}: {error}") from error
    return sane


def sanitize_list_attribute_sanity(maybe_list: list[Any]) -> AttributeValue:
    """Return a list of one type; numbers of several types are converted to the widest.

    Raises:
        ValueError: the items have no type in common.
    """
    for kind, fits in ((str, (str,)), (bool, (bool,)), (int, (int, bool)), (float, (float, int, bool))):
        if all(isinstance(item, fits) for item in maybe_list):
            values: Any = [kind(item) for item in maybe_list]
            return list(values)
    kinds = sorted({type(item).__name__ for item in maybe_list})
    raise ValueError(f"a list must hold only strings, only bools or only numbers, not {', '.join(kinds)}")


def check_attributes_sanity(attributes: Mapping[Any, Any]) -> None:
    """Check that OpenTelemetry accepts these attributes.

    Raises:
        ValueError: one is not accepted; the message names it.
    """
    for key, value in attributes.items():
        if not isinstance(key, str):
            raise ValueError(f"the name of an attribute must be a string, not {key!r}")
        if isinstance(value, list):
            try:
                sanitize_list_attribute_sanity(value)
            except ValueError as error:
                raise ValueError(f"attribute {key!r}: {error}") from error
        elif not isinstance(value, _SCALARS):
            raise ValueError(f"attribute {key!r}: a {type(value).__name__} is no value of an attribute")


def format_exception_attributes(exception: BaseException) -> Attributes:
    """Return the attributes by which OpenTelemetry describes an exception: type, message, stack."""
    facts = exception_facts(exception) | {"exception.type": type(exception).__name__}
    return {name: value for name, value in facts.items() if name != "exception.stacktrace" or str(value).strip()}
