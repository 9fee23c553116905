"""The protobuf messages of the Tinker API: classes made from a table of their fields, bounded parsing, and results.

Clients of Tinker send the data of `forward_backward` in these messages and take results in them; everything else is
JSON. A map is written as its entries, a choice between fields as all of them, an enumeration as a number: on the wire
these are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]  # no types
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # it ships no types

from ...http import BadRequestError

_PACKAGE: Final = "mini_agentic_rl.integrations.tinker"

_FIELDS: Final = {
    "SampleResponse": (
        "1 sequences [SampledSequence]",
        "2 prompt_logprobs bytes",
        "3 topk_prompt_logprobs TopkLogprobs",
        "4 prompt_cache_hit_tokens int32",
        "5 target_prompt_logprobs Tensor",
    ),
    "SampledSequence": (
        "1 stop_reason int32",
        "2 tokens bytes",
        "3 logprobs bytes",
        "4 topk_sampled_logprobs TopkLogprobs",
    ),
    "TopkLogprobs": ("1 token_ids bytes", "2 logprobs bytes", "3 k uint32", "4 length uint32"),
    "SparseCsr": ("1 values bytes", "2 crow_indices bytes", "3 col_indices bytes"),
    "Tensor": ("1 dense bytes", "2 sparse_csr SparseCsr", "3 dtype int32", "4 shape [int64]"),
    "BatchedTensor": ("1 data bytes", "2 offsets bytes", "3 dtype int32", "4 trailing_shape [int64]"),
    "BatchedTensorEntry": ("1 key string", "2 value BatchedTensor"),
    "ArrayRecord": ("1 type_tag string", "2 fields [BatchedTensorEntry]", "3 num_datums int64"),
    "MetricEntry": ("1 key string", "2 value double"),
    "ForwardBackwardOutput": (
        "1 loss_fn_output_type string",
        "2 loss_fn_outputs [ArrayRecord]",
        "3 metrics [MetricEntry]",
    ),
    "ConfigEntry": ("1 key string", "2 value ConfigValue"),
    "ConfigValue": ("1 number double", "2 text string"),
    "ForwardBackwardRequest": (
        "1 model_id string",
        "2 seq_id int32",
        "3 data [Datum]",
        "4 loss_fn string",
        "5 loss_fn_config [MetricEntry]",
        "6 forward_only bool",
        "7 loss_fn_config_v2 [ConfigEntry]",
    ),
    "TensorEntry": ("1 key string", "2 value Tensor"),
    "Datum": ("1 model_input [Chunk]", "2 loss_fn_inputs [TensorEntry]"),
    "Chunk": ("1 encoded_text EncodedTextChunk", "2 image OtherChunk", "3 dmel OtherChunk"),
    "EncodedTextChunk": ("1 tokens bytes",),
    "OtherChunk": (),
}
"""Number, name and type of each message's fields; a type in brackets comes any number of times."""

FLOAT32, INT64, INT32 = 1, 2, 3
"""Numbers of the types of tensors."""
STOP, LENGTH = 0, 1
"""Numbers of the reasons for which a sequence ends."""
NUMPY_TYPES: Final[Mapping[int, Any]] = {
    FLOAT32: np.dtype("<f4"),
    INT64: np.dtype("<i8"),
    INT32: np.dtype("<i4"),
}
"""Types of tensors by their numbers."""

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


def _classes() -> dict[str, Any]:
    field_types = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="mini_agentic_rl_tinker_api.proto", package=_PACKAGE)
    file.syntax = "proto3"
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for line in fields:
            number, field_name, kind = line.split()
            field = message.field.add(name=field_name, number=int(number))
            many = kind.startswith("[")
            field.label = field_types.LABEL_REPEATED if many else field_types.LABEL_OPTIONAL
            kind = kind.strip("[]")
            if kind in _FIELDS:
                field.type, field.type_name = field_types.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                field.type = getattr(field_types, f"TYPE_{kind.upper()}")
    # A separate pool: a Tinker client in this process registers the same messages in the default pool.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _FIELDS}


_CLASSES: Final = _classes()


_PACKED: Final = {
    name: frozenset(int(line.split()[0]) for line in fields if line.endswith("[int64]"))
    for name, fields in _FIELDS.items()
}
"""Of each message the fields that are lists of numbers."""
_INNER: Final = {
    name: {
        int(number): (key, kind.strip("[]"))
        for number, key, kind in map(str.split, fields)
        if kind.strip("[]") in _FIELDS
    }
    for name, fields in _FIELDS.items()
}
"""Of each message the fields that are messages: number, and name and type."""
_MOST_FIELDS: Final = 4_000_000
"""Most fields of one body, at all levels; a sequence with five tensors has about 40."""
_MOST_FIELDS_OF_ONE: Final = 500_000
"""Most fields of one message that is decoded in one call."""
_MOST_BYTES_OF_ONE: Final = 16 * 1024 * 1024
"""Most bytes of one such message, which is copied in one call: half a million tokens with four tensors."""
_MOST_OTHERS: Final = 1000
"""Most fields beside those messages."""
_VARINT, _BYTES = 0, 2
_FIXED: Final[Mapping[int, int]] = {1: 8, 5: 4}


def new_message(name: str, **fields: Any) -> Any:
    """Return a message of this name."""
    return _CLASSES[name](**fields)


def read_apart(name: str, body: bytes, field: str, most: int) -> tuple[Any, Iterator[Any]]:
    """Return a message without the messages of one of its fields, and those one by one.

    A field of two bytes becomes an object of a hundred, and protobuf's decoder holds the interpreter lock. So the
    fields are counted first, at all levels, and decoded in parts.

    Args:
        most: messages of that field.
    """
    try:
        rest, parts = _split(name, body, field, most)
    except ValueError as error:
        raise BadRequestError(f"the body is no {name} in protobuf: {error}") from None
    kind = next(kind for key, kind in _INNER[name].values() if key == field)
    return read_message(name, rest), (read_message(kind, body[start:end]) for start, end in parts)


def _split(name: str, body: bytes, field: str, most: int) -> tuple[bytes, list[tuple[int, int]]]:
    """Return a message without one of its fields, and the byte ranges of that field's contents."""
    number, kind = next((number, kind) for number, (key, kind) in _INNER[name].items() if key == field)
    rest: list[bytes] = []
    parts: list[tuple[int, int]] = []
    fields = 0
    for current, start, content, end in _fields_of(body, 0, len(body)):
        if current != number:
            rest.append(body[start:end])
            if len(rest) > _MOST_OTHERS or (
                current in _INNER[name] and _count(_INNER[name][current][1], body, content, end) > _MOST_OTHERS
            ):
                raise ValueError(f"there are more than {_MOST_OTHERS} fields beside `{field}`")
            continue
        if end - content > _MOST_BYTES_OF_ONE:
            raise ValueError(f"one message of `{field}` has more than {_MOST_BYTES_OF_ONE} bytes")
        within = _count(kind, body, content, end)
        fields += 1 + within
        parts.append((content, end))
        if len(parts) > most:
            raise BadRequestError(f"the body has more than {most} messages as `{field}`: send fewer at once")
        if within > _MOST_FIELDS_OF_ONE or fields > _MOST_FIELDS:
            raise BadRequestError(
                f"the body has more than {_MOST_FIELDS_OF_ONE} fields in one message, or {_MOST_FIELDS} in all: send "
                "fewer at once"
            )
    return b"".join(rest), parts


def _count(name: str, body: bytes, start: int, end: int) -> int:
    """Count the fields of a message at all levels; the count stops soon after its bound."""
    count, waiting = 0, [(name, start, end)]
    while waiting and count <= _MOST_FIELDS_OF_ONE:
        name, start, end = waiting.pop()
        for number, _, content, stop in _fields_of(body, start, end):
            # Numbers of a packed list count too: each takes at least a byte, and becomes an object.
            count += 1 if number not in _PACKED[name] else 1 + stop - content
            if count > _MOST_FIELDS_OF_ONE:
                break
            inner = _INNER[name].get(number)
            if inner is not None:
                waiting.append((inner[1], content, stop))
    return count


def _fields_of(body: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of a message: number, start, start of the content, end."""
    while at < end:
        start = at
        tag, at = _varint(body, at, end)
        kind, content = tag & 7, at
        if kind == _VARINT:
            _, at = _varint(body, at, end)
        elif kind == _BYTES:
            length, content = _varint(body, at, end)
            at = content + length
        elif kind in _FIXED:
            at += _FIXED[kind]
        else:
            raise ValueError(f"wire type {kind}")
        if at > end or tag >> 3 == 0:
            raise ValueError("a field is cut off")
        yield tag >> 3, start, content, at


def _varint(body: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = body[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("a number is cut off")


def read_message(name: str, body: bytes) -> Any:
    """Parse a message."""
    message = _CLASSES[name]()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise BadRequestError(f"the body is no {name} in protobuf: {error}") from None
    return message


# Results as messages.


def tensor_to_proto(values: npt.NDArray[Any]) -> Any:
    """Return a tensor as a message."""
    kind = INT64 if values.dtype.kind == "i" else FLOAT32
    return new_message("Tensor", dtype=kind, shape=list(values.shape), dense=values.astype(NUMPY_TYPES[kind]).tobytes())


NO_LOGPROB: Final = -99999.0
"""Placeholder for a number that was not computed, in the rows of top tokens."""


@dataclass(frozen=True)
class LossAnswer:
    """The result of `forward_backward`."""

    logprobs: Sequence[Floats]
    """Log-probabilities of each datum's targets."""
    metrics: dict[str, float]

    def to_proto(self) -> bytes:
        """Return it as a message."""
        message = new_message("ForwardBackwardOutput", loss_fn_output_type="ArrayRecord")
        # One record holds data whose tensors differ in their first axis alone.
        for trailing, group in groupby(self.logprobs, key=lambda each: each.shape[1:]):
            data = list(group)
            offsets = np.cumsum([0, *(each.size * 4 for each in data)], dtype="<i8")
            record = message.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(data))
            entry = record.fields.add(key="logprobs")
            entry.value.data = b"".join(each.astype("<f4").tobytes() for each in data)
            entry.value.offsets, entry.value.dtype = offsets.tobytes(), FLOAT32
            entry.value.trailing_shape.extend(trailing)
        for key, value in self.metrics.items():
            message.metrics.add(key=key, value=value)
        return bytes(message.SerializeToString())


@dataclass(frozen=True)
class TopTokens:
    """The K most likely tokens at N positions [N, K]; NaN where nothing was computed."""

    token_ids: Ints
    logprobs: Floats

    def to_message(self) -> Any:
        """Return it as a message."""
        missing = np.isnan(self.logprobs)
        ids = np.where(missing, 0, self.token_ids).astype("<i4")
        logprobs = np.where(missing, NO_LOGPROB, self.logprobs).astype("<f4")
        count, width = ids.shape
        return new_message("TopkLogprobs", token_ids=ids.tobytes(), logprobs=logprobs.tobytes(), k=width, length=count)


@dataclass(frozen=True)
class SampledTokens:
    """One continuation."""

    tokens: Sequence[int]
    logprobs: Sequence[float]
    stop_reason: Literal["stop", "length"]
    top_tokens: TopTokens | None = None


@dataclass(frozen=True)
class SampleAnswer:
    """The result of `sample`."""

    sequences: Sequence[SampledTokens]
    prompt_logprobs: Floats | None = None
    """[prompt] NaN where nothing was computed."""
    prompt_top_tokens: TopTokens | None = None
    target_logprobs: Floats | None = None
    """Log-probabilities of the requested tokens; 0 where none was requested."""
    cached_tokens: int = 0

    def to_proto(self) -> bytes:
        """Return it as a message."""
        message = new_message("SampleResponse", prompt_cache_hit_tokens=self.cached_tokens)
        for each in self.sequences:
            sequence = message.sequences.add(
                stop_reason=STOP if each.stop_reason == "stop" else LENGTH,
                tokens=np.array(each.tokens, "<i4").tobytes(),
                logprobs=np.array(each.logprobs, "<f4").tobytes(),
            )
            if each.top_tokens is not None:
                sequence.topk_sampled_logprobs.CopyFrom(each.top_tokens.to_message())
        if self.prompt_logprobs is not None:
            message.prompt_logprobs = self.prompt_logprobs.astype("<f4").tobytes()
        if self.prompt_top_tokens is not None:
            message.topk_prompt_logprobs.CopyFrom(self.prompt_top_tokens.to_message())
        if self.target_logprobs is not None:
            message.target_prompt_logprobs.CopyFrom(tensor_to_proto(self.target_logprobs))
        return bytes(message.SerializeToString())
