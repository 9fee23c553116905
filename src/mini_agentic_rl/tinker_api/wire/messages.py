"""The protobuf messages of the Tinker API, as classes made from a table of their fields.

Clients of Tinker send the data of `forward_backward` in these messages and take results in them; everything else is
JSON. A map is written as its entries, a choice between fields as all of them, an enumeration as a number: on the wire
these are the same.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]  # no types
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # it ships no types

from ...http import BadRequestError

_PACKAGE: Final = "mini_agentic_rl.tinker_api"

_FIELDS: Final = {
    "SampleResponse": (
        "1 sequences [SampledSequence]",
        "2 prompt_logprobs bytes",
        "3 topk_prompt_logprobs TopkLogprobs",
        "4 prompt_cache_hit_tokens int32",
        "5 target_prompt_logprobs Tensor",
        "6 prompt_alt_tokens PromptAltTokens",
    ),
    "PromptAltTokens": ("1 tokens Tensor", "2 logprobs Tensor"),
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
    # A pool of its own: a client of Tinker in this process registers messages of the same wire in the common one.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _FIELDS}


_CLASSES: Final = _classes()


def new_message(name: str, **fields: Any) -> Any:
    """Return a message of this name."""
    return _CLASSES[name](**fields)


def read_message(name: str, body: bytes) -> Any:
    """Return the message that some bytes hold.

    Raises:
        BadRequestError: they hold none.
    """
    message = _CLASSES[name]()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise BadRequestError(f"the body is no {name} in protobuf: {error}") from None
    return message
