"""The data of a `forward_backward` request: sequences of tokens, each with the tensors that its loss reads.

The current Python client sends protobuf; older clients and other languages send JSON. Both are read into arrays before
the request is queued, some thousand numbers at a time, so that other threads can run. An error in the data fails the
request when its turn comes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from ....http import BadRequestError, checked
from ..settings import RefusedError
from .messages import FLOAT32, INT32, INT64, SampleBody, new_message, read_apart

Array = npt.NDArray[Any]

T = TypeVar("T")

MOST_CELLS: Final = 1 << 24
"""Most numbers in the tensors and sequences of one request, sparse ones written out."""
MOST_DATA: Final = 1 << 16
"""Most sequences of one request."""
_LONGEST_NAME: Final = 256
_AT_ONCE: Final = 1 << 14
"""Numbers of a list that are converted in one call."""
_NUMPY: Final[Mapping[int, Any]] = {FLOAT32: np.dtype("<f4"), INT64: np.dtype("<i8"), INT32: np.dtype("<i4")}
_NAMED: Final = {"float32": FLOAT32, "int64": INT64}


@dataclass(frozen=True)
class TensorCells:
    """A tensor, and the listed cells if it was sparse."""

    dense: Array
    listed: npt.NDArray[np.bool_] | None = None
    """True for listed cells; None for a dense tensor."""
    crow: Array | None = None
    col: Array | None = None


@dataclass(frozen=True)
class LossDatum:
    """One sequence and the tensors of its loss."""

    tokens_T: npt.NDArray[np.int64]
    inputs: Mapping[str, Array]
    """Tensors by name; sparse ones are filled with zeros."""


@dataclass(frozen=True)
class LossRequest:
    """A `forward_backward` or `forward` request."""

    model_id: str
    seq_id: int | None
    loss: str
    config: Mapping[str, float | str]
    forward_only: bool
    data: list[LossDatum] | RefusedError
    """The data, or the error in them."""

    @property
    def size(self) -> int:
        """Bytes of the data."""
        if isinstance(self.data, RefusedError):
            return 0
        arrays = (array for datum in self.data for array in (datum.tokens_T, *datum.inputs.values()))
        return sum(array.nbytes for array in arrays)


class Room:
    """The remaining numbers of a request's limit."""

    def __init__(self) -> None:
        self._left = MOST_CELLS

    def take(self, cells: int, where: str) -> None:
        """Count numbers before they are allocated.

        Raises:
            RefusedError: they are too many.
        """
        self._left -= cells
        if self._left < 0:
            raise RefusedError(
                f"{where} has {cells} numbers, and {MOST_CELLS} are the most of a whole request: send it in parts"
            )


def sound(data: T | RefusedError) -> T:
    """Return the parsed data of a request.

    Raises:
        RefusedError: they were malformed.
    """
    if isinstance(data, RefusedError):
        raise data
    return data


def loss_request_of_proto(body: bytes) -> LossRequest:
    """Parse a request in protobuf.

    Raises:
        BadRequestError: the body is malformed.
    """
    message, data = read_apart("ForwardBackwardRequest", body, "data", MOST_DATA)
    config: dict[str, float | str] = {each.key: each.value for each in message.loss_fn_config}
    config.update({each.key: each.value.text or each.value.number for each in message.loss_fn_config_v2})
    seq_id = message.seq_id or None
    model_id, read = _name(message.model_id), _read_all(data, _of_proto)
    return LossRequest(model_id, seq_id, message.loss_fn, config, message.forward_only, read)


def _read_all(
    data: Iterable[Any], read: Callable[[Any, str, Room], tuple[npt.NDArray[np.int64], dict[str, TensorCells]]]
) -> list[LossDatum] | RefusedError:
    """Return the data, or the error in them, which fails the request when its turn comes."""
    datums: list[LossDatum] = []
    room = Room()
    try:
        for number, raw in enumerate(data):
            where = f"data[{number}]"
            tokens, inputs = read(raw, where, room)
            if not tokens.size:
                raise RefusedError(f"{where}.model_input is empty")
            datums.append(LossDatum(tokens, {name: cells.dense for name, cells in inputs.items()}))
    except RefusedError as error:
        return error
    return datums or RefusedError("there are no data")


def tokens_of_chunks(chunks: Sequence[Any], where: str, room: Room) -> npt.NDArray[np.int64]:
    """Return the tokens of a model input in JSON.

    Raises:
        RefusedError: a chunk is no text, or the request has too many numbers.
    """
    parts = []
    for number, chunk in enumerate(chunks):
        if not isinstance(chunk, Mapping) or chunk.get("type", "encoded_text") != "encoded_text":
            raise RefusedError(f"{where}.chunks[{number}] is no encoded text: images and sound are not taken here")
        parts.append(_integers(chunk.get("tokens", []), f"{where}.chunks[{number}].tokens", room))
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def tensor_of_json(value: Any, where: str, room: Room | None = None) -> TensorCells:
    """Parse a tensor `{"data": ..., "dtype": ..., "shape": ...}`.

    Args:
        room: remaining numbers of the request; None if this is its only tensor.

    Raises:
        RefusedError: it is malformed, or the request has too many numbers.
    """
    if not isinstance(value, Mapping) or str(value.get("dtype")) not in _NAMED:
        raise RefusedError(f"{where} is no tensor: it needs `data`, and a `dtype` of float32 or int64")
    kind = _NUMPY[_NAMED[value["dtype"]]]
    data = _listed(value.get("data", []), kind, where)
    shape, crow = value.get("shape"), value.get("sparse_crow_indices")
    if shape is not None and not (isinstance(shape, list) and all(type(size) is int for size in shape[:3])):
        raise RefusedError(f"{where}.shape is no list of whole numbers")
    sparse = None
    if crow is not None:
        col = value.get("sparse_col_indices") or []
        sparse = (_listed(crow, np.dtype("<i8"), where), _listed(col, np.dtype("<i8"), where))
    return _cells(data, shape, sparse, where, room or Room())


def tensor_to_proto(values: Array, like: TensorCells | None = None) -> Any:
    """Return a tensor as a message; sparse, with the cells of `like`, if that is sparse."""
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


def _of_proto(raw: Any, where: str, room: Room) -> tuple[npt.NDArray[np.int64], dict[str, TensorCells]]:
    parts = []
    for number, chunk in enumerate(raw.model_input):
        if not chunk.HasField("encoded_text"):
            raise RefusedError(f"{where}.model_input[{number}] is no encoded text: images and sound are not taken here")
        parts.append(_numbers(chunk.encoded_text.tokens, INT32, f"{where}.model_input[{number}]").astype(np.int64))
        room.take(parts[-1].size, f"{where}.model_input")
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
            inputs[entry.key] = _cells(_numbers(csr.values, tensor.dtype, name), shape, places, name, room)
        else:
            inputs[entry.key] = _cells(_numbers(tensor.dense, tensor.dtype, name), shape, None, name, room)
    return tokens, inputs


def _of_json(raw: Any, where: str, room: Room) -> tuple[npt.NDArray[np.int64], dict[str, TensorCells]]:
    if not isinstance(raw, Mapping):
        raise RefusedError(f"{where} is no object")
    model_input = raw.get("model_input")
    if not isinstance(model_input, Mapping) or not isinstance(model_input.get("chunks"), list):
        raise RefusedError(f"{where}.model_input has no chunks")
    tokens = tokens_of_chunks(model_input["chunks"], f"{where}.model_input", room)
    given = raw.get("loss_fn_inputs") or {}
    if not isinstance(given, Mapping):
        raise RefusedError(f"{where}.loss_fn_inputs is no object")
    return tokens, {
        name: tensor_of_json(each, f"{where}.loss_fn_inputs.{name[:_LONGEST_NAME]}", room)
        for name, each in given.items()
    }


def _numbers(data: bytes, kind: int, where: str) -> Array:
    if len(data) % _NUMPY[kind].itemsize:
        raise RefusedError(f"{where} has {len(data)} bytes, which is no whole number of its numbers")
    numbers: Array = np.frombuffer(data, _NUMPY[kind])
    return numbers


def _integers(values: Any, where: str, room: Room) -> npt.NDArray[np.int64]:
    numbers = _listed(values, np.dtype("<i8"), where)
    room.take(numbers.size, where)
    if numbers.size and not -(1 << 31) <= int(numbers.min()) <= int(numbers.max()) < 1 << 31:
        raise RefusedError(f"{where} holds a number that is no token id")
    return numbers


def _listed(values: Any, kind: np.dtype[Any], where: str) -> Array:
    """Return the numbers of a list: whole ones of 64 bits, or any as float32."""
    allowed = {int} if kind.kind == "i" else {int, float}
    expected = "whole numbers" if kind.kind == "i" else "numbers"
    if not isinstance(values, list):
        raise RefusedError(f"{where} is no list of {expected}")
    if len(values) > MOST_CELLS:
        raise RefusedError(f"{where} has {len(values)} numbers, and {MOST_CELLS} are the most of a whole request")
    numbers: Array = np.empty(len(values), kind)
    for start in range(0, len(values), _AT_ONCE):
        part = values[start : start + _AT_ONCE]
        # Without the check numpy would make a text array, as wide as the longest text.
        if not allowed.issuperset(map(type, part)):
            raise RefusedError(f"{where} holds something else than {expected}")
        try:
            with np.errstate(over="ignore"):  # the loss refuses infinities
                numbers[start : start + _AT_ONCE] = part
        except OverflowError:
            raise RefusedError(f"{where} holds a number of more than 64 bits") from None
    return numbers


def _cells(
    data: Array, shape: list[int] | None, sparse: tuple[Array, Array] | None, where: str, room: Room
) -> TensorCells:
    shape = [data.size] if shape is None else shape
    if len(shape) > 2 or not all(0 <= size <= MOST_CELLS for size in shape):
        raise RefusedError(
            f"{where} has the shape {str(shape[:3])[:80]}, and a tensor has one or two axes and at most {MOST_CELLS} "
            "numbers"
        )
    cells = math.prod(shape)
    room.take(cells, where)
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
    """Parse a request in JSON.

    Raises:
        BadRequestError: it names no model, or has no data.
    """
    given = fields.get("forward_input" if forward_only else "forward_backward_input")
    model_id, seq_id = fields.get("model_id"), fields.get("seq_id")
    if not isinstance(given, Mapping) or not isinstance(given.get("data"), list):
        raise BadRequestError("the body has no data to compute a loss of")
    if len(given["data"]) > MOST_DATA:
        raise BadRequestError(f"the body has {len(given['data'])} data, and {MOST_DATA} are the most of one request")
    if not isinstance(model_id, str) or not (seq_id is None or (type(seq_id) is int and 0 <= seq_id < 1 << 31)):
        raise BadRequestError("the body needs `model_id`, a text, and `seq_id`, a whole number")
    config = given.get("loss_fn_config") or {}
    if not isinstance(config, Mapping) or not all(isinstance(each, int | float | str) for each in config.values()):
        raise BadRequestError("loss_fn_config is no object of numbers")
    loss = str(given.get("loss_fn"))
    return LossRequest(_name(model_id), seq_id, loss, dict(config), forward_only, _read_all(given["data"], _of_json))


def _name(model_id: str) -> str:
    if len(model_id) > _LONGEST_NAME:
        raise BadRequestError(f"`model_id` is longer than {_LONGEST_NAME} characters")
    return model_id


# A request to sample, read into arrays before it is queued.


@dataclass(frozen=True)
class SamplePrompt:
    """A prompt, and the tokens whose log-probabilities are requested in it."""

    tokens_T: npt.NDArray[np.int64]
    targets: TensorCells | None = None


@dataclass(frozen=True)
class SampleRequest:
    """An `asample` request."""

    body: SampleBody
    prompt: SamplePrompt | RefusedError
    """The prompt, or the error in it."""

    @property
    def size(self) -> int:
        """Bytes of the data."""
        if isinstance(self.prompt, RefusedError):
            return 0
        targets = self.prompt.targets
        return self.prompt.tokens_T.nbytes + (0 if targets is None else targets.dense.nbytes)


def sample_request(fields: Mapping[str, Any]) -> SampleRequest:
    """Parse a request in JSON.

    Raises:
        BadRequestError: a field is malformed.
    """
    given = dict(fields)
    prompt, targets = given.pop("prompt", None), given.pop("target_prompt_logprobs", None)
    body = checked(SampleBody, given)
    if not isinstance(prompt, Mapping) or not isinstance(prompt.get("chunks"), list):
        raise BadRequestError("prompt: it needs a list of `chunks`", param="prompt")
    try:
        room = Room()
        tokens_T = tokens_of_chunks(prompt["chunks"], "prompt", room)
        cells = None if targets is None else tensor_of_json(targets, "target_prompt_logprobs", room)
    except RefusedError as error:
        return SampleRequest(body, error)
    return SampleRequest(body, SamplePrompt(tokens_T, cells))
