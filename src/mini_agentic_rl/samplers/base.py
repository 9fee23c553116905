"""The interface between the gateway and whatever samples tokens: ids in, ids out, no text.

The policy of this process is one sampler; a pool of servers that return token ids is another.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, TypeAlias

from pydantic import Field, model_validator
from typing_extensions import Self

from ..config import COMMAS, Settings
from ..http import BadRequestError
from ..plugins import choices_or_plugin
from ..tokens import TokenDelta, TokenRequest

if TYPE_CHECKING:
    SamplerName: TypeAlias = str
else:  # the choices that the command line offers, and those of plugins
    SamplerName = Annotated[Literal["own", "vllm", "sglang"], choices_or_plugin("samplers")]


class ContextLengthError(BadRequestError):
    """The prompt leaves no room for a continuation."""

    def __init__(self, prompt_tokens: int, limit: int) -> None:
        super().__init__(
            f"This model's maximum context length is {limit} tokens, but the messages have {prompt_tokens} tokens. "
            "Shorten the messages, or serve a model with a longer context.",
            param="messages",
            code="context_length_exceeded",
        )
        self.prompt_tokens = prompt_tokens
        self.limit = limit


@dataclass(frozen=True)
class SamplerLoad:
    """Load of a sampler; a mapping is empty where the sampler does not know it."""

    sequences: Mapping[str, float] = field(default_factory=dict)
    """Continuations `running` and `waiting`."""
    kv_blocks: Mapping[str, float] = field(default_factory=dict)
    """Blocks of the key/value cache: `used` by continuations under way, `idle` (kept for reuse), `free`."""


class Sampler(Protocol):
    """Samples continuations. `complete` and `load` are used from the gateway's event loop, the others from any."""

    @property
    def model_names(self) -> Sequence[str]:
        """Names that requests may ask for: the base model first, then one name for each LoRA adapter."""

    @property
    def context_length(self) -> int:
        """The most tokens that a prompt and its continuation may have together."""

    @property
    def sampled_tokens(self) -> int:
        """Tokens sampled so far."""

    def load(self) -> SamplerLoad:
        """Return how busy it is at the moment."""

    def complete(self, request: TokenRequest) -> AsyncGenerator[TokenDelta, None]:
        """Sample one continuation of `request.prompt_ids`.

        Yields deltas in order, as often as `request.delivery` asks for; the last one carries the finish reason.
        `aclose()` on the generator (or cancelling the task that iterates over it) cancels the sampling and frees what
        it held. Any number may run at once.

        Raises:
            ContextLengthError: the prompt leaves no room for a continuation.
            OverloadedError: no more requests are taken at the moment.
        """

    async def publish(self, adapter: str, version: int, save: Callable[[Path], None]) -> None:
        """Sample requests for `adapter` that begin from now on with its weights of this version.

        A sampler with a copy of the weights finishes the requests under way with those that they began with.

        Args:
            adapter: name of the adapter, or of the whole model where that is trained in full.
            version: optimizer steps behind its weights.
            save: writes them into a folder; it blocks, and is called where the sampler needs them.
        """

    def close(self) -> None:
        """End what it has started; blocks until that has ended. It does not close a policy."""


class SamplerSettings(Settings):
    """The sampler of the rollouts."""

    sampler: SamplerName = "own"
    """Sampler: the engine of this process (`own`), servers of `vllm` or `sglang` that get each new adapter while they
    run, or the name of a plugin."""
    sampler_url: Annotated[list[str], COMMAS] = Field(default=[])
    """Address of a server that samples, as http://gpu1:8000; may be given several times. Without one, `sampler=vllm`
    starts `vllm serve` here."""
    sampler_replicas: int = Field(default=1, ge=1)
    """Number of servers that `sampler=vllm` starts where no address is given."""
    sampler_args: str = ""
    """Further options of the `vllm serve` that is started, as one text: "--gpu-memory-utilization 0.5"."""
    sampler_folder: Path | None = None
    """Folder in which new weights are handed to the servers, which have to see it under the same path; by default a
    folder of the run's output."""
    sampler_timeout: float = Field(default=900.0, gt=0)
    """Seconds that a request waits where no server is well, and that a server may take to start."""
    sampler_wait: float = Field(default=300.0, ge=0)
    """Seconds in which servers that others start have to come up; the run waits for them, and says so."""
    sampler_silence: float = Field(default=180.0, gt=0)
    """Seconds without a single token after which a server that has work is taken for hung, and its answers go on
    elsewhere."""
    vllm_python: Path | None = None
    """Python of the environment that vLLM is installed in, where that is not this one."""
    parity_bound: float | None = Field(default=None, gt=0)
    """Mean difference between a server's log-probabilities and the learner's beyond which a run stops (nats); by
    default 0.01 in float32, else 0.1."""

    @model_validator(mode="after")
    def _has_servers_to_ask(self) -> Self:
        if self.sampler == "own" and self.sampler_url:
            raise ValueError("`sampler_url` is of servers: give `sampler=vllm` or `sampler=sglang` with it")
        if self.sampler == "sglang" and not self.sampler_url:
            raise ValueError("`sampler=sglang` needs the address of a server that runs: give `sampler_url`")
        return self
