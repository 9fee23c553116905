"""Requests in JSON, as models: all but the data of a loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import AliasChoices, Field

from ...http import Body

MetadataField = dict[str, Any] | None


class SessionBody(Body):
    """Begin a session."""

    tags: list[str] = Field(default=[])
    user_metadata: dict[str, Any] | None = None
    display_name: str | None = None


class HeartbeatBody(Body):
    """Say that a session's client is there."""

    session_id: str


class LoraBody(Body):
    """Describe an adapter."""

    rank: int = Field(default=32, ge=1)
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class OptimizerBody(Body):
    """Name an optimizer."""

    type: str = "adamw"


class CreateModelBody(Body):
    """Begin the training of an adapter."""

    session_id: str
    model_seq_id: int = Field(ge=0)
    base_model: str
    user_metadata: dict[str, Any] | None = None
    lora_config: LoraBody = LoraBody()
    optimizer_config: OptimizerBody = OptimizerBody()


class LoadWeightsBody(Body):
    """Take saved weights: into a model that is there, or into one that this begins."""

    path: str
    optimizer: bool = False
    model_id: str | None = None
    seq_id: int | None = None
    session_id: str | None = None
    model_seq_id: int | None = Field(default=None, ge=0)
    base_model: str | None = None
    user_metadata: dict[str, Any] | None = None
    optimizer_config: OptimizerBody | None = None


class ModelBody(Body):
    """Name a client's model."""

    model_id: str


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

    model_id: str
    seq_id: int | None = None
    adam_params: AdamBody | None = Field(default=None, validation_alias=AliasChoices("adam_params", "optim_params"))
    optimizer_params: OptimizerBody | None = None


class SaveBody(Body):
    """Save weights: under a name, or for a sampling session."""

    model_id: str
    path: str | None = None
    seq_id: int | None = None
    ttl_seconds: int | None = None
    overwrite: bool = False
    user_metadata: dict[str, Any] | None = None
    sampling_session_seq_id: int | None = None
    kind: Literal["snapshot", "inflight"] = "snapshot"


class SamplingSessionBody(Body):
    """Begin to sample with saved weights, or with the bare model."""

    session_id: str
    sampling_session_seq_id: int = Field(ge=0)
    base_model: str | None = None
    model_path: str | None = None


class JoinBody(Body):
    """Sample in a session that another process began."""

    sampling_session_id: str


class PromptBody(Body):
    """Give a prompt."""

    chunks: list[Any]


class SamplingBody(Body):
    """Say how to sample."""

    max_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = None
    stop: str | Sequence[str] | Sequence[int] | None = None
    temperature: float = Field(default=1.0, ge=0)
    top_k: int = -1
    top_p: float = Field(default=1.0, gt=0, le=1)


class SampleBody(Body):
    """Sample continuations of a prompt, or score it."""

    num_samples: int = Field(default=1, ge=1, le=1024)
    prompt: PromptBody
    sampling_params: SamplingBody = SamplingBody()
    base_model: str | None = None
    model_path: str | None = None
    sampling_session_id: str | None = None
    seq_id: int | None = None
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = Field(default=0, ge=0, le=1024)
    topk_sample_logprobs: int = Field(default=0, ge=0, le=1024)
    target_prompt_logprobs: dict[str, Any] | None = None
    prompt_alt_tokens_k: int = Field(default=0, ge=0)
    prompt_logprobs_last_n: int | None = Field(default=None, ge=1)


class RetrieveBody(Body):
    """Ask for a result."""

    request_id: str


class PathBody(Body):
    """Name saved weights."""

    tinker_path: str


class LifetimeBody(Body):
    """Give saved weights a time to live."""

    ttl_seconds: int | None = None


class AnythingBody(Body):
    """Send something that is not read."""
