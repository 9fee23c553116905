"""A request to sample, read into arrays before it waits for its turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ....http import BadRequestError, checked
from ..errors import RefusedError
from .bodies import SampleBody
from .data import Room, TensorCells, tensor_of_json, tokens_of_chunks


@dataclass(frozen=True)
class SamplePrompt:
    """A prompt, and the tokens whose log-probabilities are asked for in it."""

    tokens_T: npt.NDArray[np.int64]
    targets: TensorCells | None = None


@dataclass(frozen=True)
class SampleRequest:
    """An `asample` request."""

    body: SampleBody
    prompt: SamplePrompt | RefusedError
    """The prompt, or what is wrong with it: that fails this request and holds up no other."""

    @property
    def size(self) -> int:
        """Bytes of the data."""
        if isinstance(self.prompt, RefusedError):
            return 0
        targets = self.prompt.targets
        return self.prompt.tokens_T.nbytes + (0 if targets is None else targets.dense.nbytes)


def sample_request(fields: Mapping[str, Any]) -> SampleRequest:
    """Return a request that came in JSON.

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
