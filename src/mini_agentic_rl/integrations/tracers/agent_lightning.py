"""Functions of `agentlightning.utils.otel` and `agentlightning.utils.system_snapshot`."""

from __future__ import annotations

import json
import logging
import platform
import socket
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import psutil
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import TracerProvider

from ...emitter import (
    extract_links_from_attributes,
    extract_tags_from_attributes,
    make_link_attributes,
    make_tag_attributes,
    query_linked_spans,
    unflatten_attributes,
)
from ...runner import gpu_memory
from ...tracer import OtelTracer, exception_facts, get_active_tracer
from ...types import Attributes, AttributeValue

__all__ = [
    "check_attributes_sanity",
    "extract_links_from_attributes",
    "extract_tags_from_attributes",
    "filter_and_unflatten_attributes",
    "filter_attributes",
    "flatten_attributes",
    "format_exception_attributes",
    "full_qualified_name",
    "get_tracer",
    "get_tracer_provider",
    "make_link_attributes",
    "make_tag_attributes",
    "query_linked_spans",
    "sanitize_attribute_value",
    "sanitize_attributes",
    "sanitize_list_attribute_sanity",
    "system_snapshot",
    "unflatten_attributes",
]

logger = logging.getLogger(__name__)

_MIB: Final = 2**20
_GIB: Final = 2**30
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


def system_snapshot(include_gpu: bool = False) -> dict[str, Any]:
    """Return the load of this computer; the function of `agentlightning.utils.system_snapshot`.

    Args:
        include_gpu: add name and memory of the CUDA devices under `gpus`; loads torch.
    """
    memory, disk, network = psutil.virtual_memory(), psutil.disk_usage("/"), psutil.net_io_counters()
    return {
        "timestamp": datetime.now().isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "os": platform.platform(),
        "cpu_name": platform.processor(),
        "cpu_cores": psutil.cpu_count(logical=False),
        "cpu_threads": psutil.cpu_count(),
        "cpu_usage_pct": psutil.cpu_percent(),
        "mem_used_gb": round(memory.used / _GIB, 2),
        "mem_total_gb": round(memory.total / _GIB, 2),
        "mem_pct": memory.percent,
        "disk_used_gb": round(disk.used / _GIB, 2),
        "disk_total_gb": round(disk.total / _GIB, 2),
        "disk_pct": disk.percent,
        "bytes_sent_mb": round(network.bytes_sent / _MIB, 2),
        "bytes_recv_mb": round(network.bytes_recv / _MIB, 2),
        **({"gpus": gpu_memory()} if include_gpu else {}),
    }
