"""Attributes of spans: nested and flat values, links and tags.

A link is a pair (key, value) and refers to every span whose attribute `key` has that value. The keys `span_id` and
`trace_id` refer to the ids of the span. Several links refer to the spans that match all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from opentelemetry.sdk.trace import ReadableSpan

from ..semconv import LightningSpanAttributes, LinkPydanticModel
from ..types import Attributes, Span

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


def extract_links_from_attributes(attributes: Mapping[str, Any]) -> list[LinkPydanticModel]:
    """Return the links of a span, in their order."""
    numbers = sorted(int(match[1]) for key in attributes if (match := _LINK_KEY.fullmatch(key)))
    return [
        LinkPydanticModel(
            key_match=str(attributes[f"{_LINK}.{number}.key_match"]),
            value_match=str(attributes.get(f"{_LINK}.{number}.value_match", "")),
        )
        for number in numbers
    ]


def extract_tags_from_attributes(attributes: Mapping[str, Any]) -> list[str]:
    """Return the tags of a span, in their order."""
    numbers = sorted(int(match[1]) for key in attributes if (match := _TAG_KEY.fullmatch(key)))
    return [str(attributes[f"{_TAG}.{number}"]) for number in numbers]


def query_linked_spans(spans: Sequence[SpanT], links: Sequence[LinkPydanticModel]) -> list[SpanT]:
    """Return the spans that match every link, in the order given; without links all of them."""
    return [span for span in spans if all(_matches(span, link) for link in links)]


def _matches(span: SpanLike, link: LinkPydanticModel) -> bool:
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
