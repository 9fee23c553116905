"""Results of training and sampling as protobuf messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from .data import tensor_to_proto
from .messages import FLOAT32, LENGTH, STOP, new_message

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

NO_LOGPROB: Final = -99999.0
"""Placeholder for a number that was not computed, in the rows of likeliest tokens."""


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
            if each.likeliest is not None:
                sequence.topk_sampled_logprobs.CopyFrom(each.likeliest.to_message())
        if self.prompt_logprobs is not None:
            message.prompt_logprobs = self.prompt_logprobs.astype("<f4").tobytes()
        if self.prompt_likeliest is not None:
            message.topk_prompt_logprobs.CopyFrom(self.prompt_likeliest.to_message())
        if self.target_logprobs is not None:
            message.target_prompt_logprobs.CopyFrom(tensor_to_proto(self.target_logprobs))
        return bytes(message.SerializeToString())
