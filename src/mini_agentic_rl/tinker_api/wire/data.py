"""The data of a `forward_backward` request: sequences of tokens, each with the tensors that its loss reads.

They come in protobuf from today's Python client, and in JSON from older ones and from whoever writes no Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...http import BadRequestError
from ..errors import RefusedError
from .messages import FLOAT32, INT32, INT64, new_message, read_message

Array = npt.NDArray[Any]

MOST_CELLS: Final = 1 << 24
"""Most numbers of one tensor when it is written out, zeros included."""
_NUMPY: Final[Mapping[int, Any]] = {FLOAT32: np.dtype("<f4"), INT64: np.dtype("<i8"), INT32: np.dtype("<i4")}
_NAMED: Final = {"float32": FLOAT32, "int64": INT64}


@dataclass(frozen=True)
class TensorCells:
    """A tensor, and which of its cells were written where it came in a sparse form."""

    dense: Array
    listed: npt.NDArray[np.bool_] | None = None
    """True where a value was listed; None for a tensor that came dense."""
    crow: Array | None = None
    col: Array | None = None


@dataclass(frozen=True)
class LossDatum:
    """One sequence and what the loss reads of it."""

    tokens_T: npt.NDArray[np.int64]
    inputs: Mapping[str, Array]
    """Tensors by name; sparse ones with zeros where nothing was listed."""


@dataclass(frozen=True)
class LossRequest:
    """A `forward_backward` or `forward` request."""

    model_id: str
    seq_id: int | None
    loss: str
    config: Mapping[str, float | str]
    forward_only: bool
    raw: Any
    """The data as they came; `read_data` checks them, so that a bad one fails this request and holds up no other."""


def loss_request_of_proto(body: bytes) -> LossRequest:
    """Return a request that came in protobuf.

    Raises:
        BadRequestError: it did not.
    """
    message = read_message("ForwardBackwardRequest", body)
    config: dict[str, float | str] = {each.key: each.value for each in message.loss_fn_config}
    config.update({each.key: each.value.text or each.value.number for each in message.loss_fn_config_v2})
    return LossRequest(
        message.model_id, message.seq_id or None, message.loss_fn, config, message.forward_only, list(message.data)
    )


def read_data(request: LossRequest) -> list[LossDatum]:
    """Return the checked data of a request.

    Raises:
        RefusedError: there are none, or one of them is malformed; the text names it.
    """
    if not request.raw:
        raise RefusedError("there are no data")
    found = []
    for number, raw in enumerate(request.raw):
        where = f"data[{number}]"
        tokens, inputs = _of_json(raw, where) if isinstance(raw, Mapping) else _of_proto(raw, where)
        if not tokens.size:
            raise RefusedError(f"{where}.model_input is empty")
        found.append(LossDatum(tokens, {name: cells.dense for name, cells in inputs.items()}))
    return found


def tokens_of_chunks(chunks: Sequence[Any], where: str) -> npt.NDArray[np.int64]:
    """Return the tokens of a model input in JSON.

    Raises:
        RefusedError: a chunk is no text.
    """
    parts = []
    for number, chunk in enumerate(chunks):
        if not isinstance(chunk, Mapping) or chunk.get("type", "encoded_text") != "encoded_text":
            raise RefusedError(f"{where}.chunks[{number}] is no encoded text: images and sound are not taken here")
        parts.append(_integers(chunk.get("tokens", []), f"{where}.chunks[{number}].tokens"))
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def tensor_of_json(value: Any, where: str) -> TensorCells:
    """Return a tensor that came as `{"data": ..., "dtype": ..., "shape": ...}`.

    Raises:
        RefusedError: it is malformed.
    """
    if not isinstance(value, Mapping) or value.get("dtype") not in _NAMED:
        raise RefusedError(f"{where} is no tensor: it needs `data`, and a `dtype` of float32 or int64")
    kind = _NUMPY[_NAMED[value["dtype"]]]
    try:
        data = np.asarray(value.get("data", []), kind).reshape(-1)
        shape = None if value.get("shape") is None else [int(size) for size in value["shape"]]
        crow, col = value.get("sparse_crow_indices"), value.get("sparse_col_indices")
        sparse = None if crow is None else (np.asarray(crow, np.int64), np.asarray(col or [], np.int64))
    except (TypeError, ValueError, OverflowError) as error:
        raise RefusedError(f"{where} holds something else than numbers: {error}") from None
    return _cells(data, shape, sparse, where)


def tensor_to_proto(values: Array, like: TensorCells | None = None) -> Any:
    """Return a tensor as a message, sparse where `like` is and with its cells."""
    kind = INT64 if values.dtype.kind == "i" else FLOAT32
    written = values.astype(_NUMPY[kind])
    message = new_message("Tensor", dtype=kind, shape=list(values.shape))
    if like is None or like.crow is None or like.col is None:
        message.dense = written.tobytes()
        return message
    message.sparse_csr.values = written[_rows(like.crow), like.col].tobytes()
    message.sparse_csr.crow_indices = like.crow.astype("<i8").tobytes()
    message.sparse_csr.col_indices = like.col.astype("<i8").tobytes()
    return message


def _of_proto(raw: Any, where: str) -> tuple[npt.NDArray[np.int64], dict[str, TensorCells]]:
    parts = []
    for number, chunk in enumerate(raw.model_input):
        if not chunk.HasField("encoded_text"):
            raise RefusedError(f"{where}.model_input[{number}] is no encoded text: images and sound are not taken here")
        parts.append(_numbers(chunk.encoded_text.tokens, INT32, f"{where}.model_input[{number}]").astype(np.int64))
    tokens = np.concatenate(parts) if parts else np.empty(0, np.int64)
    inputs = {}
    for entry in raw.loss_fn_inputs:
        name, tensor = f"{where}.loss_fn_inputs.{entry.key}", entry.value
        if tensor.dtype not in _NUMPY:
            raise RefusedError(f"{name} has a type that is not taken here: send float32 or int64")
        shape = list(tensor.shape) or None
        if tensor.HasField("sparse_csr"):
            csr = tensor.sparse_csr
            places = _numbers(csr.crow_indices, INT64, name), _numbers(csr.col_indices, INT64, name)
            inputs[entry.key] = _cells(_numbers(csr.values, tensor.dtype, name), shape, places, name)
        else:
            inputs[entry.key] = _cells(_numbers(tensor.dense, tensor.dtype, name), shape, None, name)
    return tokens, inputs


def _of_json(raw: Mapping[str, Any], where: str) -> tuple[npt.NDArray[np.int64], dict[str, TensorCells]]:
    model_input = raw.get("model_input")
    if not isinstance(model_input, Mapping) or not isinstance(model_input.get("chunks"), list):
        raise RefusedError(f"{where}.model_input has no chunks")
    tokens = tokens_of_chunks(model_input["chunks"], f"{where}.model_input")
    given = raw.get("loss_fn_inputs") or {}
    if not isinstance(given, Mapping):
        raise RefusedError(f"{where}.loss_fn_inputs is no object")
    return tokens, {str(name): tensor_of_json(each, f"{where}.loss_fn_inputs.{name}") for name, each in given.items()}


def _numbers(data: bytes, kind: int, where: str) -> Array:
    if len(data) % _NUMPY[kind].itemsize:
        raise RefusedError(f"{where} has {len(data)} bytes, which is no whole number of its numbers")
    numbers: Array = np.frombuffer(data, _NUMPY[kind])
    return numbers


def _integers(values: Any, where: str) -> npt.NDArray[np.int64]:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise RefusedError(f"{where} is no list of whole numbers")
    if any(not -(1 << 31) <= value < 1 << 31 for value in values):
        raise RefusedError(f"{where} holds a number that is no token id")
    return np.array(values, np.int64)


def _cells(data: Array, shape: list[int] | None, sparse: tuple[Array, Array] | None, where: str) -> TensorCells:
    shape = [data.size] if shape is None else shape
    cells = int(np.prod(shape, dtype=np.float64)) if all(size >= 0 for size in shape) else -1
    if not 0 <= cells <= MOST_CELLS:
        raise RefusedError(f"{where} has the shape {shape}, and {MOST_CELLS} numbers are the most of one tensor")
    if sparse is None:
        if cells != data.size:
            raise RefusedError(f"{where} has {data.size} numbers, but the shape {shape}")
        return TensorCells(data.reshape(shape))
    crow, col = sparse
    rows, columns = shape if len(shape) == 2 else (-1, 0)
    ends = (
        crow.size == rows + 1
        and crow[0] == 0
        and crow[-1] == col.size == data.size
        and bool((crow[1:] >= crow[:-1]).all())
    )
    if not ends or (col.size and not 0 <= int(col.min()) <= int(col.max()) < columns):
        raise RefusedError(f"{where} is no sparse matrix of shape {shape}: its indices do not fit")
    dense, listed = np.zeros(shape, data.dtype), np.zeros(shape, np.bool_)
    dense[_rows(crow), col], listed[_rows(crow), col] = data, True
    return TensorCells(dense, listed, crow, col)


def _rows(crow: Array) -> Array:
    return np.repeat(np.arange(crow.size - 1), np.diff(crow))


def loss_request_of_json(fields: Mapping[str, Any], *, forward_only: bool) -> LossRequest:
    """Return a request that came in JSON.

    Raises:
        BadRequestError: it names no model, or has no data.
    """
    given = fields.get("forward_input" if forward_only else "forward_backward_input")
    model_id, seq_id = fields.get("model_id"), fields.get("seq_id")
    if not isinstance(given, Mapping) or not isinstance(given.get("data"), list):
        raise BadRequestError("the body has no data to compute a loss of")
    if not isinstance(model_id, str) or not (seq_id is None or type(seq_id) is int):
        raise BadRequestError("the body needs `model_id`, a text, and `seq_id`, a whole number")
    config = given.get("loss_fn_config") or {}
    return LossRequest(model_id, seq_id, str(given.get("loss_fn")), dict(config), forward_only, given["data"])
