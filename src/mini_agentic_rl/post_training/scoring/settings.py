"""The settings of the reward service. Each field is one option of `score-server`: its docstring is the help text."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic.config import JsonDict

from ...config import Settings
from ...http import RequestLimits

Truncation = Literal["left", "right", "refuse"]

_MODEL: JsonDict = {"panel": "Model"}
_BATCHES: JsonDict = {"panel": "Batches"}
_SERVER: JsonDict = {"panel": "Server"}


class TextLimits(Settings):
    """Bounds on the length of a text."""

    max_length: int | None = Field(default=None, ge=2, json_schema_extra=_MODEL)
    """Tokens of one text, prompt and response; without it, what the model's positions allow."""
    truncation: Truncation = Field(default="left", json_schema_extra=_MODEL)
    """What becomes of a longer text: `left` cuts its beginning (the end is where the score is read), `right` its end,
    `refuse` answers with an error. An answer says which texts were cut."""


class BatchSettings(Settings):
    """Bounds on batches, and on what waits for them."""

    batch_size: int = Field(default=64, ge=1, json_schema_extra=_BATCHES)
    """At most this many texts in one pass through the model."""
    batch_tokens: int | None = Field(default=None, ge=1, json_schema_extra=_BATCHES)
    """At most this many tokens in one pass, a longer text alone excepted; by default 2048 on a CPU and 16384 on a
    GPU."""
    batch_wait_ms: float = Field(default=5.0, ge=0, json_schema_extra=_BATCHES)
    """How long a text waits for others to come along, in milliseconds, while the model is idle."""
    max_items: int = Field(default=512, ge=1, json_schema_extra=_BATCHES)
    """At most this many texts or pairs in one request."""
    max_queue: int = Field(default=4096, ge=1, json_schema_extra=_BATCHES)
    """At most this many texts wait; then requests are answered with status 429 and the time to wait."""


class ScoreServerSettings(RequestLimits, BatchSettings, TextLimits):
    """The settings of `score-server`."""

    model: str = Field(default="", json_schema_extra=_MODEL)
    """Reward model: the output folder of `reward`, a sequence-classification checkpoint with one label, or a Hugging
    Face id."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(default="auto", json_schema_extra=_MODEL)
    """Number format of the weights; auto takes what the device is best at."""
    device: str = Field(default="auto", json_schema_extra=_MODEL)
    """Where to compute: auto, cpu, cuda, cuda:1, mps."""

    host: str = Field(default="127.0.0.1", json_schema_extra=_SERVER)
    """Address to listen on; 0.0.0.0 lets other machines in."""
    port: int = Field(default=8001, ge=0, le=65535, json_schema_extra=_SERVER)
    """Port to listen on; 0 takes a free one."""
    api_key: list[str] = Field(default=[], json_schema_extra=_SERVER)
    """Key that clients must send; give it several times for several clients. Without any key everybody who reaches the
    port may ask."""
    api_key_file: Path | None = Field(default=None, json_schema_extra=_SERVER)
    """File with one such key on each line: other users of this computer cannot read it off the command line."""
