"""`plan`: predict the memory and the seconds of a run, and the settings that fit. No model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from ..visible_text import visible_line
from .tables import show
from .train_config import PlanSettings


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
