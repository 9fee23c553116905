"""Requests of the Tinker API: bodies in JSON as models, and the data of losses and prompts as arrays.

Losses come in protobuf and prompts in JSON. Both are read into arrays before the request is queued, some thousand
numbers at a time, so that other threads can run. An error in the data fails the request when its turn comes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import AliasChoices, BeforeValidator, Field

from ...http import BadRequestError, Body, checked
from .protobuf import INT32, NUMPY_TYPES, read_apart
from .settings import RefusedError

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
    kind: Literal["snapshot"] = "snapshot"


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


# The data of losses and prompts.


Array = npt.NDArray[Any]

MOST_CELLS: Final = 1 << 24
"""Most numbers in the tensors and sequences of one request."""
MOST_DATA: Final = 1 << 16
"""Most sequences of one request."""
_LONGEST_NAME: Final = 256
_AT_ONCE: Final = 1 << 14
"""Numbers of a list that are converted in one call."""


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
    data: list[LossDatum]
    error: RefusedError | None
    """The error in the data, which fails the request when its turn comes."""

    @property
    def size(self) -> int:
        """Bytes of the data."""
        arrays = (array for datum in self.data for array in (datum.tokens_T, *datum.inputs.values()))
        return sum(array.nbytes for array in arrays)


class Room:
    """The remaining numbers of a request's limit."""

    def __init__(self) -> None:
        self._left = MOST_CELLS

    def take(self, cells: int, where: str) -> None:
        """Count numbers before they are allocated."""
        self._left -= cells
        if self._left < 0:
            raise RefusedError(
                f"{where} has {cells} numbers, and {MOST_CELLS} are the most of a whole request: send it in parts"
            )


def loss_request_of_proto(body: bytes) -> LossRequest:
    """Parse a request in protobuf."""
    message, data = read_apart("ForwardBackwardRequest", body, "data", MOST_DATA)
    config: dict[str, float | str] = {each.key: each.value for each in message.loss_fn_config}
    config.update({each.key: each.value.text or each.value.number for each in message.loss_fn_config_v2})
    if len(message.model_id) > _LONGEST_NAME:
        raise BadRequestError(f"`model_id` is longer than {_LONGEST_NAME} characters")
    room = Room()
    parsed: list[LossDatum] = []
    problem: RefusedError | None = None
    try:
        parsed = [_datum_of(raw, f"data[{number}]", room) for number, raw in enumerate(data)]
        if not parsed:
            raise RefusedError("there are no data")
    except RefusedError as error:
        problem = error
    return LossRequest(
        model_id=message.model_id,
        seq_id=message.seq_id or None,
        loss=message.loss_fn,
        config=config,
        forward_only=message.forward_only,
        data=parsed,
        error=problem,
    )


def tokens_of_chunks(chunks: Sequence[Any], where: str, room: Room) -> npt.NDArray[np.int64]:
    """Return the tokens of a model input in JSON."""
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
    """Parse a tensor of whole numbers, `{"data": ..., "dtype": "int64", "shape": ...}`."""
    if not isinstance(value, Mapping) or value.get("dtype") != "int64":
        raise RefusedError(f"{where} is no tensor of token ids: it needs `data`, and the `dtype` int64")
    if value.get("sparse_crow_indices") is not None:
        raise RefusedError(f"{where} is a sparse tensor: send a dense one")
    shape = value.get("shape")
    if shape is not None and not (isinstance(shape, list) and all(type(size) is int for size in shape[:3])):
        raise RefusedError(f"{where}.shape is no list of whole numbers")
    return _shaped(_integers(value.get("data", []), where), shape, where, room)


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
        if tensor.dtype not in NUMPY_TYPES:
            raise RefusedError(f"{name} has a type that is not taken here: send float32 or int64")
        if tensor.HasField("sparse_csr"):
            raise RefusedError(f"{name} is a sparse tensor: send a dense one")
        numbers = _numbers(tensor.dense, tensor.dtype, name)
        inputs[entry.key] = _shaped(numbers, list(tensor.shape) or None, name, room)
    return LossDatum(tokens_T, inputs)


def _numbers(data: bytes, kind: int, where: str) -> Array:
    if len(data) % NUMPY_TYPES[kind].itemsize:
        raise RefusedError(f"{where} has {len(data)} bytes, which is no whole number of its numbers")
    numbers: Array = np.frombuffer(data, NUMPY_TYPES[kind])
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
class SampleRequest:
    """An `asample` request."""

    body: SampleBody
    prompt_T: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64] | None = None
    """[tokens - 1, K] ids of the tokens that could follow each position; negative ones request nothing."""
    error: RefusedError | None = None
    """The error in these data, which fails the request."""

    @property
    def size(self) -> int:
        """Bytes of the data."""
        return self.prompt_T.nbytes + (0 if self.targets is None else self.targets.nbytes)


def sample_request(fields: Mapping[str, Any]) -> SampleRequest:
    """Parse a request in JSON."""
    given = dict(fields)
    prompt, targets = given.pop("prompt", None), given.pop("target_prompt_logprobs", None)
    body = checked(SampleBody, given)
    if not isinstance(prompt, Mapping) or not isinstance(prompt.get("chunks"), list):
        raise BadRequestError("prompt: it needs a list of `chunks`", param="prompt")
    try:
        room = Room()
        prompt_T = tokens_of_chunks(prompt["chunks"], "prompt", room)
        target_ids = None if targets is None else targets_of_json(targets, "target_prompt_logprobs", room)
    except RefusedError as error:
        return SampleRequest(body, np.empty(0, np.int64), error=error)
    return SampleRequest(body, prompt_T, target_ids)
