"""The settings of `convert-dpo` and `dataset`. Each field is one option: its docstring is the help text."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic.config import JsonDict

from ..config import Settings

_FILES: JsonDict = {"panel": "Files"}
_FIELDS: JsonDict = {"panel": "Fields"}
_JSON: JsonDict = {"option": "--json"}


class ConvertSettings(Settings):
    """What `convert-dpo` does."""

    input: Path | None = Field(default=None, json_schema_extra=_FILES)
    """Raw preferences: .jsonl (also .gz), .json, .csv, .tsv or .parquet. Needed."""
    output: Path | None = Field(default=None, json_schema_extra=_FILES)
    """JSONL file to write, one `{"prompt", "chosen", "rejected"}` of messages a line. Needed."""
    report: Path | None = Field(default=None, json_schema_extra=_FILES)
    """JSON file for the report: what was left out, and why."""

    prompt_field: str | None = Field(default=None, json_schema_extra=_FIELDS)
    """Field of the prompt, where it is not found by its name."""
    chosen_field: str | None = Field(default=None, json_schema_extra=_FIELDS)
    """Field of the better answer, where it is not found by its name."""
    rejected_field: str | None = Field(default=None, json_schema_extra=_FIELDS)
    """Field of the worse answer, where it is not found by its name."""

    json_output: bool = Field(default=False, json_schema_extra=_JSON)
    """Print the report as JSON on standard output."""


class DatasetSettings(Settings):
    """What `dataset` does."""

    dataset: str = Field(default="arithmetic", json_schema_extra={"argument": True})
    """Data set: `arithmetic`, `medical`, `gsm_symbolic`, `gsm8k`, a file, a folder, `owner/name` on the Hub, or
    `module:function`."""
    form: Literal["sft", "rl", "preference", "unpaired"] = "sft"
    """Form of training."""
    split: Literal["train", "val", "test", "all"] = "train"
    """Which part; `all` is for files."""
    max_samples: int | None = Field(default=None, ge=0)
    """How many examples to draw; by default all, of generated data sets 1000."""
    show: int = Field(default=3, ge=0)
    """How many examples to show."""
    seed: int = Field(default=0, ge=0)
    """Seed of the draw, and of what is generated."""
    output: Path | None = None
    """JSONL file for the examples, as training reads them."""
    json_output: bool = Field(default=False, json_schema_extra=_JSON)
    """Print the result as JSON on standard output."""
