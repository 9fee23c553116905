"""Token requests, their answers, and the record of one call: the seam between the gateway and whatever samples tokens.

`TokenRequest` asks for a continuation of `prompt_ids`; the answer is a stream of `TokenDelta`. The in-process policy
and any upstream server that returns token ids look the same from here. The gateway writes each call as an immutable
`CompletionRecord`, from which the token tree is built. No text crosses here, only token ids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt


class ConstraintError(Exception):
    """No continuation obeys the constraint any more, or it became too complex; the message says which."""


class TokenConstraint(Protocol):
    """A grammar as sets of allowed token ids. It follows one continuation, on one thread at a time.

    The next token is drawn from the policy's distribution restricted to the allowed tokens. The recorded
    log-probability is that under the whole distribution, which the learner computes too. Let p be the policy, A the
    allowed tokens and Z = sum of p over A; the draw is from q = p / Z, whose gradient is

        grad log q(token) = grad log p(token) - grad log Z.

    If A has one token, q is 1 for every policy: the gradient is zero, and training on grad log p would teach the policy
    to write a forced token. Such positions are recorded as *forced*, and make no terms. Elsewhere grad log p is used
    and grad log Z left out, as for tokens that top-p or top-k cut off: the policy itself is trained, and its total
    weight on allowed tokens moves with the advantages.
    """

    def allowed(self, vocabulary: int) -> npt.NDArray[np.int32]:
        """Return the ids that may come next: id i is bit i % 32 of word i // 32; ids beyond the last word may not.

        An end token is allowed only where the continuation may end, and nothing else where it must end.

        Args:
            vocabulary: number of ids of the model; bits of further ids are ignored.

        Raises:
            ConstraintError: there is no such id.
        """

    def certain(self, vocabulary: int) -> Sequence[int]:
        """Return the ids below `vocabulary` that must come next, in order, as far as they are known without work.

        Each is the only allowed id after those before it.
        """

    def advance(self, token_id: int) -> None:
        """Add the drawn id. After an id that was not allowed, `allowed` fails."""


GREEDY_BELOW: Final = 1e-5
"""Temperatures below this become 0: logits divided by less overflow."""

FinishReason = Literal["stop", "length", "cancelled"]
Delivery = Literal["stepwise", "joined", "whole"]
Asker = tuple[str, str]
"""Names of the owner of a request, and of the request."""


@dataclass(frozen=True)
class SamplingParams:
    """The sampling of one continuation. Log-probabilities are taken after `temperature` and before truncation."""

    temperature: float = 1.0
    """Softmax temperature; 0 is greedy (log-probabilities are then those of temperature 1), and so is less than
    `GREEDY_BELOW`, which becomes 0."""
    top_p: float = 1.0
    """Nucleus size; below 1 it renormalises the sampler only, and so biases the training ratio."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all. Same bias as `top_p`."""
    min_p: float = 0.0
    """Drop tokens whose probability is below `min_p` times that of the likeliest one; 0 keeps all."""
    max_tokens: int = 256
    """At most this many sampled tokens."""
    seed: int | None = None
    """Seed of the draws, which depend on nothing else, such as other requests; None takes a new seed."""
    stop_token_ids: tuple[int, ...] = ()
    """Sampling any of these ends the continuation; the token itself is kept and recorded."""
    top_logprobs: int = 0
    """Also report the log-probabilities of this many likeliest tokens per position."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of the given token ids before the temperature."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of every token that was sampled already."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit once for every time that it was sampled."""
    repetition_penalty: float = 1.0
    """Divides the positive logits, and multiplies the negative ones, of tokens in the prompt or sampled already; before
    the other penalties and the temperature (CTRL; Keskar et al. 2019)."""
    min_tokens: int = 0
    """None of `stop_token_ids` is drawn before so many tokens. Like truncation, it leaves the log-probabilities."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be 0 or more, not {self.temperature}")
        if self.temperature < GREEDY_BELOW:
            object.__setattr__(self, "temperature", 0.0)
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], not {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 or more, not {self.top_k}")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p must be in [0, 1], not {self.min_p}")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be 1 or more, not {self.max_tokens}")
        if not 0 < self.repetition_penalty < math.inf:
            raise ValueError(f"repetition_penalty must be more than 0, not {self.repetition_penalty}")
        if not all(map(math.isfinite, (self.presence_penalty, self.frequency_penalty, *self.logit_bias.values()))):
            raise ValueError("logit_bias, presence_penalty and frequency_penalty must be finite numbers")

    @cached_property
    def bias(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """The token ids of `logit_bias` and what is added to their logits, made once for all steps."""
        size = len(self.logit_bias)
        return (
            np.fromiter(self.logit_bias.keys(), np.int64, size),
            np.fromiter(self.logit_bias.values(), np.float32, size),
        )


@dataclass(frozen=True)
class TokenRequest:
    """One continuation to sample."""

    prompt_ids: tuple[int, ...]
    """The whole context, as token ids."""
    sampling: SamplingParams = SamplingParams()
    """Temperature, truncation, bounds and seed."""
    adapter: str | None = "default"
    """Named LoRA adapter to sample with; None is the base model without an adapter."""
    request_id: str = ""
    """For logs only."""
    affinity: str = ""
    """Name of a group of requests, such as an attempt at a rollout, that are best sampled in one place, where the keys
    of their common beginning are cached; empty for none."""
    asker: Asker = field(default=("", ""), repr=False)
    """Names of the owner, such as an API key or an attempt at a rollout, and of the request: owners get equal shares of
    the cache and of the passes, and so do the requests of one owner."""
    delivery: Delivery = "stepwise"
    """Delivery of the tokens: `stepwise`, each as soon as it is sampled; `joined`, several together after the first; or
    the `whole` in one delta at the end. Fewer deltas cost less."""
    constraint: Callable[[], TokenConstraint] | None = None
    """Maker of the constraint, called once for each continuation; None limits nothing."""


@dataclass(frozen=True)
class TokenDelta:
    """The tokens that one step of the sampler added to a continuation."""

    token_ids: tuple[int, ...] = ()
    """Newly sampled ids, in order."""
    logprobs: tuple[float, ...] = ()
    """Their log-probabilities (natural log), one for each id."""
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    """For each id, the likeliest (id, log-probability) pairs, best first; empty without `top_logprobs`."""
    forced: tuple[bool, ...] = ()
    """For each id, True if the constraint allowed no other; empty where that is true of none."""
    finish_reason: FinishReason | None = None
    """Set on the last delta: an end token was sampled, the length bound was met, or the request was cancelled."""
    version: int = 0
    """The policy version that sampled these tokens: the number of optimizer steps behind it."""
    cached_tokens: int = 0
    """Number of prompt tokens in the prefix cache (on the first delta)."""
    failure: str = ""
    """On the last delta: reason of the cancellation, where no token obeyed the constraint."""


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
    None if there is no such token."""
    version: int = 0
    """Policy version that sampled it; of several the first."""
    versions: npt.NDArray[np.int64] | None = None
    """[sampled tokens] policy version that sampled each, where the weights changed under way; None where `version`
    sampled all."""
    finish_reason: FinishReason = "stop"
    """Reason for its end."""
    rollout_id: str = ""
    """Rollout that made the call."""
    attempt_id: str = ""
    """Attempt that made the call."""
    response_id: str = ""
    """Id of the response the agent received; the choices of one request with n > 1 share it."""
    choice: int = 0
    """Index of the choice within the response."""
    model: str = ""
    """Model name in the agent's request."""
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
