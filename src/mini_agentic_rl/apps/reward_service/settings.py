"""The settings of the reward service. Each field is one option of `score-server`: its docstring is the help text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from ...config import Settings, restated
from ...gateway import ServerSettings
from ...http import RequestLimits
from ...policy import Dtype, ModelSettings

Truncation = Literal["left", "right", "refuse"]


class TextLimits(Settings):
    """Bounds on the length of a text."""

    max_length: int | None = Field(default=None, ge=2)
    """Tokens of one text, prompt and response; without it, what the model's positions allow."""
    truncation: Truncation = "left"
    """Treatment of a longer text: `left` cuts its beginning (the end is where the score is read), `right` its end,
    `refuse` answers with an error. An answer says which texts were cut."""


class BatchSettings(Settings):
    """Bounds on batches, and on what waits for them."""

    batch_size: int = Field(default=64, ge=1)
    """At most this many texts in one pass through the model."""
    batch_tokens: int | None = Field(default=None, ge=1)
    """At most this many tokens in one pass, a longer text alone excepted; by default 2048 on a CPU and 16384 on a
    GPU."""
    batch_wait_ms: float = Field(default=5.0, ge=0)
    """Milliseconds that a text waits for others to come along while the model is idle."""
    max_items: int = Field(default=512, ge=1)
    """At most this many texts or pairs in one request."""
    max_queue: int = Field(default=4096, ge=1)
    """At most this many texts wait; then requests are answered with status 429 and the time to wait."""


class ScoreServerSettings(RequestLimits, BatchSettings, TextLimits, ServerSettings):
    """The settings of `score-server`."""

    defaults: ClassVar[Mapping[str, Any]] = {"port": 8001}
    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        "Model": (*TextLimits.model_fields, "model", "dtype", "device"),
        "Batches": tuple(BatchSettings.model_fields),
        "Limits of requests": tuple(RequestLimits.model_fields),
        "Server": tuple(ServerSettings.model_fields),
    }

    model: str = restated(
        ModelSettings,
        "model",
        "",
        "Reward model: the output folder of `reward`, a sequence-classification checkpoint with one label, or a "
        "Hugging Face id.",
    )
    dtype: Dtype = restated(ModelSettings, "dtype", "auto")
    device: str = restated(ModelSettings, "device", "auto")
