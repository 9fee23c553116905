"""The interface between the gateway and a sampler: token ids in, token ids out, no text.

`PolicySampler` samples with the engine of this process, `SamplerPool` on servers.
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


@dataclass(frozen=True)
class SamplerLoad:
    """Load of a sampler; a mapping is empty if the sampler does not know it."""

    sequences: Mapping[str, float] = field(default_factory=dict)
    """Numbers of `running` and `waiting` continuations."""
    kv_blocks: Mapping[str, float] = field(default_factory=dict)
    """Blocks of the key/value cache: `used` by running continuations, `idle` (kept for reuse), `free`."""


class Sampler(Protocol):
    """Samples continuations. `complete` and `load` run on the gateway's event loop, the others on any."""

    @property
    def model_names(self) -> Sequence[str]:
        """Model names of requests: the base model first, then each LoRA adapter."""

    @property
    def context_length(self) -> int:
        """Maximum number of tokens of a prompt and its continuation together."""

    @property
    def sampled_tokens(self) -> int:
        """Tokens sampled so far."""

    def load(self) -> SamplerLoad:
        """Return the current load."""

    def complete(self, request: TokenRequest) -> AsyncGenerator[TokenDelta, None]:
        """Sample one continuation of `request.prompt_ids`.

        Yields deltas in order, as often as `request.delivery` asks for; the last one has the finish reason. Closing
        the generator, or cancelling the task that iterates over it, cancels the sampling. Any number may run at once.

        Raises:
            ContextLengthError: the prompt leaves no room for a continuation.
            OverloadedError: the sampler accepts no more requests at the moment.
        """

    async def publish(self, adapter: str, version: int, save: Callable[[Path], None]) -> None:
        """Use these weights of `adapter` for requests that begin from now on.

        A sampler with a copy of the weights finishes the requests in flight with the weights that they began with.

        Args:
            adapter: name of the adapter, or of the whole model if all of its weights are trained.
            version: number of optimizer steps behind the weights.
            save: writes the weights into a folder; blocks. Called only if the sampler needs a copy.
        """

    def close(self) -> None:
        """End everything that it has started, and wait for that. It does not close a policy."""


class SamplerSettings(Settings):
    """Where the tokens of the rollouts are sampled."""

    sampler: SamplerName = "own"
    """Sampler: the built-in engine (`own`), `vllm` or `sglang` servers, or the name of a plugin."""
    sampler_url: Annotated[list[str], COMMAS] = Field(default=[])
    """Address of a server, such as http://gpu1:8000; may be given several times. Without one, `sampler=vllm` starts
    `vllm serve` on this computer."""
    sampler_replicas: int = Field(default=1, ge=1)
    """Number of servers that `sampler=vllm` starts."""
    sampler_args: str = ""
    """Further options for `vllm serve`, as one text: "--gpu-memory-utilization 0.5"."""
    sampler_folder: Path | None = None
    """Folder for new weights, which the servers must see under the same path; by default `sampler/` in the output
    folder."""
    sampler_timeout: float = Field(default=900.0, gt=0)
    """Seconds that a request waits for a healthy server, and that a server may take to start."""
    sampler_wait: float = Field(default=300.0, ge=0)
    """Seconds to wait for the servers of `sampler_url` to answer."""
    sampler_silence: float = Field(default=180.0, gt=0)
    """Seconds without a token after which a busy server counts as hung; its answers continue on another server."""
    vllm_python: Path | None = None
    """Python interpreter of the environment with vLLM, if it is another one than this."""
    parity_bound: float | None = Field(default=None, gt=0)
    """Mean difference (nats) between the log-probabilities of a server and of the learner above which the run stops;
    by default 0.01 in float32, else 0.1."""

    @model_validator(mode="after")
    def _check_servers(self) -> Self:
        if self.sampler == "own" and self.sampler_url:
            raise ValueError("`sampler_url` names servers: give `sampler=vllm` or `sampler=sglang` with it")
        if self.sampler == "sglang" and not self.sampler_url:
            raise ValueError("`sampler=sglang` needs the address of a server that runs: give `sampler_url`")
        strange = next((url for url in self.sampler_url if not url.startswith(("http://", "https://"))), None)
        if strange is not None:
            raise ValueError(f"`sampler_url` needs the whole address, such as http://gpu1:8000, not {strange!r}")
        return self
