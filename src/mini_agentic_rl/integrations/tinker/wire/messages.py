"""The protobuf messages of the Tinker API, as classes made from a table of their fields.

Clients of Tinker send the data of `forward_backward` in these messages and take results in them; everything else is
JSON. A map is written as its entries, a choice between fields as all of them, an enumeration as a number: on the wire
these are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]  # no types
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # it ships no types
from pydantic import AliasChoices, BeforeValidator, Field

from ....http import BadRequestError, Body

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

    Raises:
        BadRequestError: it is no such message, or is beyond a bound.
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
    """Yield the fields of a message: number, start, start of the content, end.

    Raises:
        ValueError: it is no message.
    """
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
    """Parse a message.

    Raises:
        BadRequestError: the bytes are no such message.
    """
    message = _CLASSES[name]()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise BadRequestError(f"the body is no {name} in protobuf: {error}") from None
    return message


# Requests in JSON, as models: all but the data of a loss and the tokens of a prompt.


_MOST_ENDS: Final = 64
_LONGEST_END: Final = 256


def _few_and_short(stop: Any) -> Any:
    """Bound the stop texts: each is searched after every sampled token."""
    ends = stop if isinstance(stop, list) else [stop]
    if len(ends) > _MOST_ENDS or any(isinstance(end, str) and len(end) > _LONGEST_END for end in ends):
        raise ValueError(f"at most {_MOST_ENDS} ends are taken, texts of at most {_LONGEST_END} characters")
    if any(isinstance(end, int) and not 0 <= end < 2**31 for end in ends):
        raise ValueError("a token id has at most 31 bits")
    return stop


Name = Annotated[str, Field(max_length=256)]
Number = Annotated[int, Field(ge=0, lt=2**31)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class SessionBody(Body):
    """Begin a session."""

    tags: list[str] = Field(default=[])
    user_metadata: dict[str, Any] | None = None
    display_name: Name | None = None


class HeartbeatBody(Body):
    """Heartbeat of a session."""

    session_id: Name


class LoraBody(Body):
    """Describe an adapter."""

    rank: int = Field(default=32, ge=1)
    seed: Seed | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class OptimizerBody(Body):
    """Name an optimizer."""

    type: Name = "adamw"


class CreateModelBody(Body):
    """Begin the training of an adapter."""

    session_id: Name
    model_seq_id: Number
    base_model: Name
    user_metadata: dict[str, Any] | None = None
    lora_config: LoraBody = LoraBody()
    optimizer_config: OptimizerBody = OptimizerBody()


class LoadWeightsBody(Body):
    """Take saved weights: into an existing model or into a new one."""

    path: Name
    optimizer: bool = False
    model_id: Name | None = None
    seq_id: Number | None = None
    session_id: Name | None = None
    model_seq_id: Number | None = None
    base_model: Name | None = None
    user_metadata: dict[str, Any] | None = None
    optimizer_config: OptimizerBody | None = None


class ModelBody(Body):
    """Name a client's model."""

    model_id: Name


class AdamBody(Body):
    """Hyperparameters of one AdamW step (Loshchilov and Hutter 2019)."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0
    """Gradient clipping norm; 0 turns clipping off."""


class OptimStepBody(Body):
    """Take an optimizer step."""

    model_id: Name
    seq_id: Number | None = None
    adam_params: AdamBody | None = Field(default=None, validation_alias=AliasChoices("adam_params", "optim_params"))
    optimizer_params: OptimizerBody | None = None


class SaveBody(Body):
    """Save weights: under a name, or for a sampling session."""

    model_id: Name
    path: Name | None = None
    seq_id: Number | None = None
    ttl_seconds: int | None = None
    overwrite: bool = False
    user_metadata: dict[str, Any] | None = None
    sampling_session_seq_id: Number | None = None
    kind: Literal["snapshot", "inflight"] = "snapshot"


class SamplingSessionBody(Body):
    """Begin to sample with saved weights, or with the bare model."""

    session_id: Name
    sampling_session_seq_id: Number
    base_model: Name | None = None
    model_path: Name | None = None


class JoinBody(Body):
    """Sample in a session that another process began."""

    sampling_session_id: Name


class SamplingBody(Body):
    """Say how to sample."""

    max_tokens: int | None = Field(default=None, ge=1)
    seed: Seed | None = None
    stop: Annotated[str | Sequence[str] | Sequence[int] | None, BeforeValidator(_few_and_short)] = None
    temperature: float = Field(default=1.0, ge=0)
    top_k: int = Field(default=-1, lt=2**31)
    top_p: float = Field(default=1.0, gt=0, le=1)


class SampleBody(Body):
    """Sample continuations of a prompt, or score it; the tokens of the prompt are read apart."""

    num_samples: int = Field(default=1, ge=1, le=1024)
    sampling_params: SamplingBody = SamplingBody()
    base_model: Name | None = None
    model_path: Name | None = None
    sampling_session_id: Name | None = None
    seq_id: Number | None = None
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = Field(default=0, ge=0, le=1024)
    topk_sample_logprobs: int = Field(default=0, ge=0, le=1024)
    prompt_alt_tokens_k: int = Field(default=0, ge=0)
    prompt_logprobs_last_n: int | None = Field(default=None, ge=1)


class RetrieveBody(Body):
    """Ask for a result."""

    request_id: Name


class PathBody(Body):
    """Name saved weights."""

    tinker_path: Name


class AnythingBody(Body):
    """Send something that is not read."""
