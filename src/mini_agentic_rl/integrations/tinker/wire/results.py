"""Results of training and sampling, in protobuf if the client accepts it, else in JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from ....http import encode
from .data import TensorCells, tensor_to_proto
from .messages import FLOAT32, LENGTH, STOP, new_message

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

_AT_ONCE: Final = 4096
"""Numbers that are written as JSON in one call."""

NO_LOGPROB: Final = -99999.0
"""Placeholder for a number that was not computed, in the rows of likeliest tokens."""


@dataclass(frozen=True)
class LossAnswer:
    """The result of `forward_backward`."""

    logprobs: Sequence[Floats]
    """Log-probabilities of each datum's targets."""
    metrics: dict[str, float]

    @property
    def count(self) -> int:
        """Numbers in it."""
        return sum(each.size for each in self.logprobs)

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

    def json_parts(self) -> Iterator[bytes]:
        """Yield it as the text of a JSON object, in parts."""
        yield b'{"loss_fn_output_type":"ArrayRecord","loss_fn_outputs":['
        for number, each in enumerate(self.logprobs):
            yield b',{"logprobs":{"data":' if number else b'{"logprobs":{"data":'
            yield from _list(each.reshape(-1))
            yield b',"dtype":"float32","shape":' + encode(list(each.shape)) + b"}}"
        yield b'],"metrics":' + encode(self.metrics) + b"}"


@dataclass(frozen=True)
class LikeliestRows:
    """The K likeliest tokens at N positions [N, K]; NaN where nothing was computed."""

    token_ids: Ints
    logprobs: Floats

    def to_message(self) -> Any:
        """Return it as a message."""
        missing = np.isnan(self.logprobs)
        ids = np.where(missing, 0, self.token_ids).astype("<i4")
        logprobs = np.where(missing, NO_LOGPROB, self.logprobs).astype("<f4")
        count, width = ids.shape
        return new_message("TopkLogprobs", token_ids=ids.tobytes(), logprobs=logprobs.tobytes(), k=width, length=count)

    def rows(self) -> Iterator[list[tuple[int, float]] | None]:
        """Yield each row as pairs."""
        for ids, logprobs in zip(self.token_ids, self.logprobs, strict=True):
            yield None if np.isnan(logprobs).any() else list(zip(ids.tolist(), logprobs.tolist(), strict=True))


@dataclass(frozen=True)
class SampledTokens:
    """One continuation."""

    tokens: Sequence[int]
    logprobs: Sequence[float]
    stop_reason: Literal["stop", "length"]
    likeliest: LikeliestRows | None = None


@dataclass(frozen=True)
class SampleAnswer:
    """The result of `sample`."""

    sequences: Sequence[SampledTokens]
    prompt_logprobs: Floats | None = None
    """[prompt] NaN where nothing was computed."""
    prompt_likeliest: LikeliestRows | None = None
    target_logprobs: tuple[Floats, TensorCells] | None = field(default=None)
    """Log-probabilities of the requested tokens, and the tensor of the request."""
    cached_tokens: int = 0

    @property
    def count(self) -> int:
        """Numbers in it, about."""
        likeliest = [self.prompt_likeliest, *(each.likeliest for each in self.sequences)]
        rows = sum(each.token_ids.size for each in likeliest if each is not None)
        prompt = 0 if self.prompt_logprobs is None else self.prompt_logprobs.size
        return 2 * sum(len(each.tokens) for each in self.sequences) + prompt + 2 * rows

    def to_proto(self) -> bytes:
        """Return it as a message."""
        message = new_message("SampleResponse", prompt_cache_hit_tokens=self.cached_tokens)
        for each in self.sequences:
            sequence = message.sequences.add(
                stop_reason=STOP if each.stop_reason == "stop" else LENGTH,
                tokens=np.array(each.tokens, "<i4").tobytes(),
                logprobs=np.array(each.logprobs, "<f4").tobytes(),
            )
            if each.likeliest is not None:
                sequence.topk_sampled_logprobs.CopyFrom(each.likeliest.to_message())
        if self.prompt_logprobs is not None:
            message.prompt_logprobs = self.prompt_logprobs.astype("<f4").tobytes()
        if self.prompt_likeliest is not None:
            message.topk_prompt_logprobs.CopyFrom(self.prompt_likeliest.to_message())
        if self.target_logprobs is not None:
            values, like = self.target_logprobs
            message.target_prompt_logprobs.CopyFrom(tensor_to_proto(values, like))
        return bytes(message.SerializeToString())

    def json_parts(self) -> Iterator[bytes]:
        """Yield it as the text of a JSON object, in parts, without the fields of newer clients, which take protobuf."""
        yield b'{"type":"sample","sequences":['
        for number, each in enumerate(self.sequences):
            yield (b"," if number else b"") + b'{"stop_reason":' + encode(each.stop_reason) + b',"tokens":'
            yield from _list(each.tokens)
            yield b',"logprobs":'
            yield from _list(each.logprobs)
            yield b"}"
        yield b"]"
        if self.prompt_logprobs is not None:
            yield b',"prompt_logprobs":'
            yield from _list(self.prompt_logprobs)
        if self.prompt_likeliest is not None:
            yield b',"topk_prompt_logprobs":['
            for number, row in enumerate(self.prompt_likeliest.rows()):
                yield (b"," if number else b"") + encode(row)
            yield b"]"
        yield b"}"


def _list(values: Sequence[int] | Sequence[float] | Floats) -> Iterable[bytes]:
    """Yield numbers as a JSON array; null stands for NaN."""
    yield b"["
    for start in range(0, len(values), _AT_ONCE):
        part = values[start : start + _AT_ONCE]
        text = encode(part.tolist() if isinstance(part, np.ndarray) else list(part))
        yield (b"," if start else b"") + text[1:-1]
    yield b"]"
