"""`plan`: predict the memory and the seconds of a run, and the settings that fit. No model is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field
from rich.console import Console
from rich.table import Table

from ..algorithm import GRPOSettings
from ..config import JsonSettings
from ..policy import EngineSettings, LearnerSettings, LoraSettings, ModelSettings, RankSettings
from ..samplers import SamplerSettings
from ..visible_text import visible_line
from .tables import show


class PlanSettings(JsonSettings):
    """The settings of `plan`."""

    defaults: ClassVar[Mapping[str, Any]] = {"loop.max_new_tokens": 512}
    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        "Model": ("load.*",),
        "Memory": (
            *("vram", "lora.r", "lora.dropout", "learner.checkpointing", "learner.max_batch_tokens"),
            *("engine.cache_mib", "engine.cuda_graphs"),
        ),
        "Reinforcement learning": (
            *("loop.tasks_per_step", "loop.samples_per_prompt"),
            *("prompt_tokens", "loop.max_new_tokens", "loop.max_staleness"),
        ),
        "Spread": ("ranks", "team.shard", "sampling.sampler", "replicas", "rates"),
        "Run": ("json_output",),
    }
    helps: ClassVar[Mapping[str, str]] = {
        "loop.max_new_tokens": "Tokens that a rollout samples in all its calls together.",
    }

    vram: str | None = None
    """GPU memory to fit into, as 4GB or 3500MB: chooses settings that save memory as needed, and assumes bitsandbytes
    (the `quant` extra). Without it the given settings are planned as they are."""
    prompt_tokens: int = Field(default=512, ge=1)
    """Tokens of a task's prompt, system prompt and tools included."""
    ranks: int = Field(default=1, ge=1)
    """Processes that learn, each with a share of the step's tasks."""
    replicas: int = Field(default=0, ge=0)
    """Servers that sample for the ranks. 0 plans one server where `sampler` is not `own` or the base is sharded; else
    each rank samples its share itself."""
    rates: Path | None = None
    """Folder of a run whose measured rates predict the seconds of a step. By default the rates that `doctor` measured
    on this computer, else those of a 2-core machine; none for a GPU."""

    load: ModelSettings = ModelSettings()
    lora: LoraSettings = LoraSettings()
    learner: LearnerSettings = LearnerSettings()
    engine: EngineSettings = EngineSettings()
    sampling: SamplerSettings = SamplerSettings()
    team: RankSettings = RankSettings()
    loop: GRPOSettings = GRPOSettings()


def plan(settings: PlanSettings) -> None:
    """Predict what a training run holds in memory, part by part, and which settings fit; no model is loaded."""
    from .planning import plan_job

    result = plan_job(settings)
    show(settings, result, _show_plan)


def _show_plan(console: Console, plan: Mapping[str, Any]) -> None:
    """Print the memory, the seconds of a step, and the options of `train` that go with them."""
    title = "Memory" if plan["ranks"] == 1 else f"Memory of each of {plan['ranks']} ranks"
    table = Table("", "when", "MB", title=title)
    table.columns[2].justify = "right"
    for part in plan["parts"]:
        table.add_row(visible_line(part["name"]), part["phase"], f"{part['bytes'] / 1e6:,.0f}")
    table.add_section()
    table.add_row("peak", "", f"{plan['peak_bytes'] / 1e6:,.0f}")
    console.print(table)
    if plan["replica"] is not None:
        servers = Table("", "MB", title="Memory of each server that samples (estimated, not measured)")
        servers.columns[1].justify = "right"
        for part in plan["replica"]["parts"]:
            servers.add_row(part["name"], f"{part['bytes'] / 1e6:,.0f}")
        servers.add_section()
        servers.add_row("all", f"{plan['replica']['peak_bytes'] / 1e6:,.0f}")
        console.print(servers)
    step = plan["step"]
    if step is None:
        console.print("step: no rates were measured on a GPU; --rates RUN takes those of a run")
    else:
        console.print(
            f"step: {step['seconds']:,.1f} s ({step['sampling_seconds']:,.1f} s of sampling, "
            f"{step['learning_seconds']:,.1f} s of learning), without waiting for agents, publishing and summing"
        )
        console.print(
            f"rates: {visible_line(step['rates'])}; scaled by the number of weights: "
            f"{step['sampled_tokens_per_second']:,.0f} tokens/s sampled and "
            f"{step['learned_tokens_per_second']:,.0f} learned by each process"
        )
    console.print(f"mini-agentic-rl train {plan['options']}")
