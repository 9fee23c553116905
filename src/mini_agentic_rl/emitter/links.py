"""Links and tags: how a span refers to other spans, and words by which it can be found.

A link is a pair (key, value): it means every span whose attribute `key` has that value; the keys `span_id` and
`trace_id` mean the span's own ids. A span with several links means the spans that fit all of them.
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


class LinkedSpan(Protocol):
    """Anything with attributes. `Span` and `ReadableSpan` have ids as well."""

    @property
    def attributes(self) -> Mapping[str, Any] | None: ...


SpanT = TypeVar("SpanT", bound=LinkedSpan)


SpanLink = LinkPydanticModel


def make_link_attributes(links: Mapping[str, Any]) -> Attributes:
    """Return the attributes of a span that refers to all spans with `links`: `{"gen_ai.response.id": "resp-1"}`.

    Raises:
        ValueError: a value is no string, number or truth value.
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
    """Return those of `spans` that fit every link, in the order given. Without links, all fit."""
    return [span for span in spans if all(_fits(span, link) for link in links)]


def _fits(span: LinkedSpan, link: SpanLink) -> bool:
    ids = _ids(span)
    if link.key_match in ids:
        return ids[link.key_match] == link.value_match
    value = (span.attributes or {}).get(link.key_match)
    return value is not None and str(value) == link.value_match


def _ids(span: LinkedSpan) -> dict[str, str]:
    if isinstance(span, Span):
        return {"span_id": span.span_id, "trace_id": span.trace_id}
    context = span.get_span_context() if isinstance(span, ReadableSpan) else None
    if context is None:
        return {}
    return {"span_id": f"{context.span_id:016x}", "trace_id": f"{context.trace_id:032x}"}
