"""The settings of `merge` and `export`. Each field is one option: its docstring is the help text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from ...config import JsonSettings, restated
from ...policy import Dtype, ModelSettings
from ...trainer import RunSettings

ExportFormat = Literal["merged", "adapter", "gguf"]


class ResultSettings(JsonSettings):
    """The settings that merging and exporting have in common."""

    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        "Model": ("model", "device"),
        "Result": ("output_dir", "dtype", "max_shard_size", "overwrite"),
        "Check": ("check", "check_prompt", "check_tokens"),
        "Run": ("json_output",),
    }

    model: str | None = restated(
        ModelSettings, "model", None, "Base model; by default the one that the adapter says it was trained on."
    )
    device: str = restated(ModelSettings, "device", "auto")

    output_dir: Path | None = restated(
        RunSettings,
        "output_dir",
        None,
        "Folder of the result; by default beside the adapter, under its name with `-merged`, `-adapter` or `-gguf`.",
    )
    dtype: Dtype = restated(
        ModelSettings,
        "dtype",
        "auto",
        "Number format of what is written; auto is that of the base, or of the adapter.",
    )
    max_shard_size: str = "5GB"
    """Size of the largest file of weights."""
    overwrite: bool = restated(
        RunSettings, "overwrite", False, "Replace a model or an adapter that is in the output folder."
    )

    check: bool = True
    """Load what was written, and compare its greedy tokens and logits with those of base and adapter; where they differ
    nothing is published."""
    check_prompt: list[str] = Field(default=[])
    """Prompt to compare on; give it several times for several. Without it there are a few of ours."""
    check_tokens: int = Field(default=24, ge=1)
    """Tokens to sample after each prompt."""


class MergeSettings(ResultSettings):
    """The settings of `merge`."""

    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        **ResultSettings.panels,
        "Model": (*ResultSettings.panels["Model"], "adapter"),
    }

    adapter: list[Path] = Field(default=[])
    """Folder of an adapter, or of the run that trained it; give it several times to add several into one model."""


class ExportSettings(ResultSettings):
    """The settings of `export`."""

    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        **ResultSettings.panels,
        "Model": (*ResultSettings.panels["Model"], "adapters"),
        "Result": (*ResultSettings.panels["Result"], "merge_lora", "format", "base_name"),
        "GGUF": ("converter", "outtype"),
    }

    adapters: list[Path] = Field(default=[])
    """Folder of an adapter, or of the run that trained it; give it several times for several. Without one
    `format=gguf` converts the model itself."""
    merge_lora: Literal["true", "false"] | None = None
    """Add adapters into their base: `true` is `format=merged`, `false` is `format=adapter`."""
    format: ExportFormat | None = None
    """`merged` (the default): a whole model for transformers and vLLM; `adapter`: in plain peft form; `gguf`: one file
    for llama.cpp and what builds on it."""
    base_name: str | None = None
    """Name that an exported adapter has for its base, for those who load it elsewhere: a Hugging Face id. By default
    the id that it was loaded by; of a path its last part."""

    converter: Path | None = None
    """llama.cpp's `convert_hf_to_gguf.py`, the folder of llama.cpp that holds it, or a program like it; by default it
    is looked for on the PATH."""
    outtype: Literal["auto", "f32", "f16", "bf16", "q8_0"] = "auto"
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
