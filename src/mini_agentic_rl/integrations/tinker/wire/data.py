"""The data of a `forward_backward` request: sequences of tokens, each with the tensors that its loss reads.

Losses come in protobuf and prompts in JSON. Both are read into arrays before the request is queued, some thousand
numbers at a time, so that other threads can run. An error in the data fails the request when its turn comes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
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
"""Most numbers in the tensors and sequences of one request."""
MOST_DATA: Final = 1 << 16
"""Most sequences of one request."""
_LONGEST_NAME: Final = 256
_AT_ONCE: Final = 1 << 14
"""Numbers of a list that are converted in one call."""
_NUMPY: Final[Mapping[int, Any]] = {FLOAT32: np.dtype("<f4"), INT64: np.dtype("<i8"), INT32: np.dtype("<i4")}


@dataclass(frozen=True)
class LossDatum:
    """One sequence and the tensors of its loss."""

    tokens_T: npt.NDArray[np.int64]
    inputs: Mapping[str, Array]
    """Tensors by name."""


@dataclass(frozen=True)
class LossRequest:
    """A `forward_backward` request."""

    model_id: str
    seq_id: int | None
    loss: str
    config: Mapping[str, float | str]
    forward_only: bool
    """True to compute the loss without its gradient."""
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
    if len(message.model_id) > _LONGEST_NAME:
        raise BadRequestError(f"`model_id` is longer than {_LONGEST_NAME} characters")
    return LossRequest(
        message.model_id, message.seq_id or None, message.loss_fn, config, message.forward_only, _read_all(data)
    )


def _read_all(data: Iterable[Any]) -> list[LossDatum] | RefusedError:
    """Return the data, or the error in them, which fails the request when its turn comes."""
    datums: list[LossDatum] = []
    room = Room()
    try:
        for number, raw in enumerate(data):
            datums.append(_datum_of(raw, f"data[{number}]", room))
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
        field = f"{where}.chunks[{number}]"
        if not isinstance(chunk, Mapping) or chunk.get("type", "encoded_text") != "encoded_text":
            raise RefusedError(f"{field} is no encoded text: images and sound are not taken here")
        token_ids = _integers(chunk.get("tokens", []), f"{field}.tokens")
        room.take(token_ids.size, f"{field}.tokens")
        if token_ids.size and not -(1 << 31) <= int(token_ids.min()) <= int(token_ids.max()) < 1 << 31:
            raise RefusedError(f"{field}.tokens holds a number that is no token id")
        parts.append(token_ids)
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def targets_of_json(value: Any, where: str, room: Room) -> npt.NDArray[np.int64]:
    """Parse a tensor of whole numbers, `{"data": ..., "dtype": "int64", "shape": ...}`.

    Raises:
        RefusedError: it is malformed, or the request has too many numbers.
    """
    if not isinstance(value, Mapping) or value.get("dtype") != "int64":
        raise RefusedError(f"{where} is no tensor of token ids: it needs `data`, and the `dtype` int64")
    if value.get("sparse_crow_indices") is not None:
        raise RefusedError(f"{where} is a sparse tensor: send a dense one")
    shape = value.get("shape")
    if shape is not None and not (isinstance(shape, list) and all(type(size) is int for size in shape[:3])):
        raise RefusedError(f"{where}.shape is no list of whole numbers")
    return _shaped(_integers(value.get("data", []), where), shape, where, room)


def tensor_to_proto(values: Array) -> Any:
    """Return a tensor as a message."""
    kind = INT64 if values.dtype.kind == "i" else FLOAT32
    return new_message("Tensor", dtype=kind, shape=list(values.shape), dense=values.astype(_NUMPY[kind]).tobytes())


def _datum_of(raw: Any, where: str, room: Room) -> LossDatum:
    parts = []
    for number, chunk in enumerate(raw.model_input):
        if not chunk.HasField("encoded_text"):
            raise RefusedError(f"{where}.model_input[{number}] is no encoded text: images and sound are not taken here")
        parts.append(_numbers(chunk.encoded_text.tokens, INT32, f"{where}.model_input[{number}]").astype(np.int64))
        room.take(parts[-1].size, f"{where}.model_input")
    tokens_T = np.concatenate(parts) if parts else np.empty(0, np.int64)
    if not tokens_T.size:
        raise RefusedError(f"{where}.model_input is empty")
    inputs = {}
    for entry in raw.loss_fn_inputs:
        name, tensor = f"{where}.loss_fn_inputs.{entry.key}", entry.value
        if tensor.dtype not in _NUMPY:
            raise RefusedError(f"{name} has a type that is not taken here: send float32 or int64")
        if tensor.HasField("sparse_csr"):
            raise RefusedError(f"{name} is a sparse tensor: send a dense one")
        numbers = _numbers(tensor.dense, tensor.dtype, name)
        inputs[entry.key] = _shaped(numbers, list(tensor.shape) or None, name, room)
    return LossDatum(tokens_T, inputs)


def _numbers(data: bytes, kind: int, where: str) -> Array:
    if len(data) % _NUMPY[kind].itemsize:
        raise RefusedError(f"{where} has {len(data)} bytes, which is no whole number of its numbers")
    numbers: Array = np.frombuffer(data, _NUMPY[kind])
    return numbers


def _integers(values: Any, where: str) -> npt.NDArray[np.int64]:
    """Return the whole numbers of a list."""
    if not isinstance(values, list):
        raise RefusedError(f"{where} is no list of whole numbers")
    if len(values) > MOST_CELLS:
        raise RefusedError(f"{where} has {len(values)} numbers, and {MOST_CELLS} are the most of a whole request")
    numbers = np.empty(len(values), np.int64)
    for start in range(0, len(values), _AT_ONCE):
        part = values[start : start + _AT_ONCE]
        # Without the check numpy would make a text array, as wide as the longest text.
        if not {int}.issuperset(map(type, part)):
            raise RefusedError(f"{where} holds something else than whole numbers")
        try:
            numbers[start : start + _AT_ONCE] = part
        except OverflowError:
            raise RefusedError(f"{where} holds a number of more than 64 bits") from None
    return numbers


def _shaped(data: Array, shape: list[int] | None, where: str, room: Room) -> Array:
    shape = [data.size] if shape is None else shape
    if len(shape) > 2 or not all(0 <= size <= MOST_CELLS for size in shape):
        raise RefusedError(
            f"{where} has the shape {str(shape[:3])[:80]}, and a tensor has one or two axes and at most {MOST_CELLS} "
            "numbers"
        )
    cells = math.prod(shape)
    room.take(cells, where)
    if cells != data.size:
        raise RefusedError(f"{where} has {data.size} numbers, but the shape {shape}")
    return data.reshape(shape)


# A request to sample, read into arrays before it is queued.


@dataclass(frozen=True)
class SamplePrompt:
    """A prompt, and the tokens whose log-probabilities are requested in it."""

    tokens_T: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64] | None = None
    """[tokens - 1, K] ids of the tokens that could follow each position; negative ones request nothing."""


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
        return self.prompt.tokens_T.nbytes + (0 if targets is None else targets.nbytes)


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
        target_ids = None if targets is None else targets_of_json(targets, "target_prompt_logprobs", room)
    except RefusedError as error:
        return SampleRequest(body, error)
    return SampleRequest(body, SamplePrompt(tokens_T, target_ids))
