"""The settings of `merge` and `export`. Each field is one option: its docstring is the help text."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from ...config import Settings

_MODEL: JsonDict = {"panel": "Model"}
_RESULT: JsonDict = {"panel": "Result"}
_CHECK: JsonDict = {"panel": "Check"}
_GGUF: JsonDict = {"panel": "GGUF"}
_RUN: JsonDict = {"panel": "Run"}
_JSON: JsonDict = {"panel": "Run", "option": "--json"}

ExportFormat = Literal["merged", "adapter", "gguf"]


class ResultSettings(Settings):
    """The settings that merging and exporting have in common."""

    model: str | None = Field(default=None, json_schema_extra=_MODEL)
    """Base model; by default the one that the adapter says it was trained on."""
    device: str = Field(default="auto", json_schema_extra=_MODEL)
    """Where to compute: auto, cpu, cuda, cuda:1, mps."""

    output_dir: Path | None = Field(default=None, json_schema_extra=_RESULT)
    """Folder of the result; by default beside the adapter, under its name with `-merged`, `-adapter` or `-gguf`."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(default="auto", json_schema_extra=_RESULT)
    """Number format of what is written; auto is that of the base, or of the adapter."""
    max_shard_size: str = Field(default="5GB", json_schema_extra=_RESULT)
    """Size of the largest file of weights."""
    overwrite: bool = Field(default=False, json_schema_extra=_RESULT)
    """Replace a model or an adapter that is in the output folder."""

    check: bool = Field(default=True, json_schema_extra=_CHECK)
    """Load what was written, and compare its greedy tokens and logits with those of base and adapter; where they differ
    nothing is published."""
    check_prompt: list[str] = Field(default=[], json_schema_extra=_CHECK)
    """Prompt to compare on; give it several times for several. Without it there are a few of ours."""
    check_tokens: int = Field(default=24, ge=1, json_schema_extra=_CHECK)
    """Tokens to sample after each prompt."""

    json_output: bool = Field(default=False, json_schema_extra=_JSON)
    """Print the summary as JSON on standard output."""


class MergeSettings(ResultSettings):
    """The settings of `merge`."""

    adapter: list[Path] = Field(default=[], json_schema_extra=_MODEL)
    """Folder of an adapter, or of the run that trained it; give it several times to add several into one model."""


class ExportSettings(ResultSettings):
    """The settings of `export`."""

    adapters: list[Path] = Field(default=[], json_schema_extra=_MODEL)
    """Folder of an adapter, or of the run that trained it; give it several times for several. Without one `--format
    gguf` converts the model itself."""
    merge_lora: Literal["true", "false"] | None = Field(default=None, json_schema_extra=_RESULT)
    """Whether adapters are added into their base: `true` is `--format merged`, `false` is `--format adapter`."""
    format: ExportFormat | None = Field(default=None, json_schema_extra=_RESULT)
    """`merged` (the default): a whole model for transformers and vLLM; `adapter`: in plain peft form; `gguf`: one file
    for llama.cpp and what builds on it."""
    base_name: str | None = Field(default=None, json_schema_extra=_RESULT)
    """What an exported adapter calls its base, for those who load it elsewhere: a Hugging Face id. By default the id
    that it was loaded by; of a path its last part."""

    converter: Path | None = Field(default=None, json_schema_extra=_GGUF)
    """llama.cpp's `convert_hf_to_gguf.py`, the folder of llama.cpp that holds it, or a program like it; by default it
    is looked for on the PATH."""
    outtype: Literal["auto", "f32", "f16", "bf16", "q8_0"] = Field(default="auto", json_schema_extra=_GGUF)
    """Number format of the GGUF file; auto leaves it to the converter."""

    @model_validator(mode="after")
    def _agree(self) -> ExportSettings:
        said = {"true": ("merged", "gguf"), "false": ("adapter",)}
        if self.merge_lora is not None and self.format is not None and self.format not in said[self.merge_lora]:
            raise ValueError(f"`merge_lora={self.merge_lora}` and `format={self.format}` contradict each other")
        return self

    @property
    def wanted(self) -> ExportFormat:
        """The format that both options together ask for."""
        return self.format or ("adapter" if self.merge_lora == "false" else "merged")
