"""Requests in JSON, as models: all but the data of a loss and the tokens of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import AliasChoices, BeforeValidator, Field

from ....http import Body

_MOST_ENDS: Final = 64
_LONGEST_END: Final = 256


def _few_and_short(stop: Any) -> Any:
    """Check the ends of a continuation before they are read: each text is looked for behind each sampled token."""
    ends = stop if isinstance(stop, list) else [stop]
    if len(ends) > _MOST_ENDS or any(isinstance(end, str) and len(end) > _LONGEST_END for end in ends):
        raise ValueError(f"at most {_MOST_ENDS} ends are taken, texts of at most {_LONGEST_END} characters")
    if any(isinstance(end, int) and not 0 <= end < 2**31 for end in ends):
        raise ValueError("a token id has at most 31 bits")
    return stop


Name = Annotated[str, Field(max_length=256)]
Number = Annotated[int, Field(ge=0, lt=2**31)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class SessionBody(Body):
    """Begin a session."""

    tags: list[str] = Field(default=[])
    user_metadata: dict[str, Any] | None = None
    display_name: Name | None = None


class HeartbeatBody(Body):
    """Say that a session's client is there."""

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
    """Take saved weights: into a model that is there, or into one that this begins."""

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
    """Give the numbers of an optimizer step."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


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
    kind: Literal["snapshot", "inflight"] = "snapshot"


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
    """Sample continuations of a prompt, or score it; the tokens of the prompt are read apart (`prompts.py`)."""

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


class LifetimeBody(Body):
    """Give saved weights a time to live."""

    ttl_seconds: int | None = None


class AnythingBody(Body):
    """Send something that is not read."""
