"""The immutable record of one LLM call, token by token. The gateway writes it, the token tree is grown from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .request import FinishReason


@dataclass(frozen=True)
class CompletionRecord:
    """One LLM call as token ids. `prompt_ids` and `output_ids` are exactly those that the sampler saw and drew."""

    prompt_ids: npt.NDArray[np.int64]
    """[prompt tokens] the whole context of the call."""
    output_ids: npt.NDArray[np.int64]
    """[sampled tokens] including the end token where one was sampled."""
    logprobs: npt.NDArray[np.float32]
    """[sampled tokens] log-probability of each sampled token, after temperature and before truncation."""
    forced: npt.NDArray[np.bool_] | None = None
    """[sampled tokens] True where a constraint left no choice (`TokenConstraint`), so that nothing is trained there;
    None where it always left one."""
    version: int = 0
    """Policy version that sampled it; of several the first."""
    versions: npt.NDArray[np.int64] | None = None
    """[sampled tokens] policy version that sampled each, where the weights changed under way; None where `version`
    sampled all."""
    finish_reason: FinishReason = "stop"
    """Reason for which it ended."""
    rollout_id: str = ""
    """Rollout that made the call."""
    attempt_id: str = ""
    """Attempt that made the call."""
    response_id: str = ""
    """Id of the response the agent received; the choices of one request with n > 1 share it."""
    choice: int = 0
    """Index of the choice within the response."""
    model: str = ""
    """Model name that the agent asked for."""
    temperature: float = 1.0
    """Sampling temperature; the learner divides its logits by it."""
    sequence_id: int = 0
    """Order of the call within its attempt, as the store counted it."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Anything else worth keeping (agent name, span id)."""

    def __post_init__(self) -> None:
        if self.prompt_ids.ndim != 1 or self.output_ids.ndim != 1:
            raise ValueError("prompt_ids and output_ids must be one-dimensional")
        if self.prompt_ids.size == 0:
            raise ValueError("a completion record needs at least one prompt token")
        if self.output_ids.shape != self.logprobs.shape:
            raise ValueError(
                f"{self.output_ids.size} sampled tokens but {self.logprobs.size} log-probabilities: "
                "cut and extend them together"
            )
        if self.forced is not None and self.forced.shape != self.output_ids.shape:
            raise ValueError(f"{self.output_ids.size} sampled tokens but {self.forced.size} marks of forced ones")
        if self.versions is not None and self.versions.shape != self.output_ids.shape:
            raise ValueError(f"{self.output_ids.size} sampled tokens but {self.versions.size} versions")

    @property
    def versions_T(self) -> npt.NDArray[np.int64]:
        """[sampled tokens] policy version that sampled each."""
        return np.full(self.output_ids.size, self.version, np.int64) if self.versions is None else self.versions

    @property
    def trained_tokens(self) -> int:
        """Number of sampled tokens that the policy had a choice about; each of them makes one term."""
        return self.output_ids.size - (0 if self.forced is None else int(self.forced.sum()))
