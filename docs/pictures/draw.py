"""Draw the picture of the README out of a run of the main job, and that of the page about memory out of the plan.

    python docs/pictures/draw.py outputs/math-agent
    python docs/pictures/draw.py

`curve.svg` shows the measured accuracy and the reward of the training rollouts, with the warm-up and reinforcement
learning apart. The program prints the transcript of one held-out task in each of the three measurements. `memory.svg`,
which needs no run and no model, shows the planned parts of three trainings, once while they sample and once while they
learn.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, PretrainedConfig, Qwen2Config

from mini_agentic_rl.adapter import TraceToMessages
from mini_agentic_rl.emitter import find_final_reward
from mini_agentic_rl.metrics import read_metrics
from mini_agentic_rl.policy import (
    MOST_LEARNT_AT_ONCE,
    MemoryPlan,
    ModelShape,
    PlannedSettings,
    PlannedWork,
    fitting_plan,
    plan_memory,
)
from mini_agentic_rl.store import SqlLightningStore
from mini_agentic_rl.trainer.report import line_chart

HERE = Path(__file__).parent
COLUMNS = 100
PHASES = ("before", "after SFT", "after RL")
SERIES = ("#2f6fb2", "#c2571a")
WARM_UP_SHARE = 0.3
"""Width of the warm-up in the picture of the curves, as a share of that of reinforcement learning."""
CURVE = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 480 262" font-family="system-ui, sans-serif">
<style>
text {{ font-size: 11px; fill: #68707a; }}
polyline {{ fill: none; stroke-width: 2; stroke-linejoin: round; }}
.raw {{ stroke-width: 1; opacity: 0.45; }} .grid {{ stroke: #e4e2dd; }}
</style>
<rect width="480" height="262" fill="#ffffff"/>
<text x="62" y="18" style="fill: #2f6fb2">accuracy: {accuracy}</text>
<text x="62" y="34" style="fill: #c2571a">mean reward of the training rollouts</text>
<line x1="{border:.0f}" x2="{border:.0f}" y1="46" y2="226" stroke="#68707a" stroke-dasharray="3 3"/>
<text x="68" y="66">warm-up</text>
<text x="{right:.0f}" y="66">reinforcement learning</text>
<g transform="translate(10 40)">{chart}</g>
</svg>
"""

SMOLLM2_135M = LlamaConfig(
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    vocab_size=49152,
    tie_word_embeddings=True,
)
QWEN2_05B = Qwen2Config(
    hidden_size=896,
    intermediate_size=4864,
    num_hidden_layers=24,
    num_attention_heads=14,
    num_key_value_heads=2,
    vocab_size=151936,
    tie_word_embeddings=True,
)
PART_COLOURS = {
    "process": "#9aa1aa",
    "weights": "#2f6fb2",
    "adapter and its gradients": "#17406b",
    "optimizer": "#0c2238",
    "keys and values": "#c2571a",
    "recorded decode steps": "#8a3d12",
    "activations of sampling": "#e7a977",
    "weights laid out for sampling": "#8fb6dd",
    "activations of learning": "#3f8f5b",
    "head": "#1f5a36",
    "holes in the heap": "#c9ccd1",
}
"""Parts of a plan in the order in which a bar shows them."""
GIGABYTE_WIDTH = 165
BAR_LEFT = 80

MEMORY = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 660 {height}" font-family="system-ui, sans-serif">
<style>text {{ font-size: 11px; fill: #68707a; }} .caption {{ font-size: 12px; fill: #22262b; }}</style>
<rect width="660" height="{height}" fill="#ffffff"/>
{body}
</svg>
"""


def memory_plans() -> dict[str, MemoryPlan]:
    """Return the plans that the picture shows, by their captions."""
    step = PlannedWork(tasks_per_step=4, samples_per_prompt=8, prompt_tokens=375, max_new_tokens=64)
    small, plain = _shape(SMOLLM2_135M), PlannedSettings(torch.bfloat16, compiled=True)
    checkpointed = PlannedSettings(torch.bfloat16, checkpointing=True, compiled=True)
    card = PlannedSettings(torch.bfloat16, max_batch_tokens=MOST_LEARNT_AT_ONCE, optimizer_8bit=True, cuda_graphs=True)
    long_step = PlannedWork(tasks_per_step=8, samples_per_prompt=8, prompt_tokens=512, max_new_tokens=512)
    return {
        "SmolLM2-135M on a CPU, bfloat16: 4 tasks x 8 samples": plan_memory(small, step, plain, on_cpu=True),
        "the same with --gradient-checkpointing": plan_memory(small, step, checkpointed, on_cpu=True),
        "Qwen2-0.5B on a card of 4 GB, bfloat16: 8 tasks x 8 samples": fitting_plan(
            _shape(QWEN2_05B), long_step, card, 4 * 10**9, on_cpu=False, quantizes=True
        ),
    }


def _shape(config: PretrainedConfig) -> ModelShape:
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        return ModelShape.of(folder)


def draw_memory(plans: dict[str, MemoryPlan]) -> str:
    """Return the bars of the plans as an SVG document: in each pair, what is held while sampling and while learning."""
    lines: list[str] = []
    y = 0
    for caption, plan in plans.items():
        y += 24
        lines.append(f'<text x="8" y="{y}" class="caption">{caption}; peak {plan.peak / 1e9:.2f} GB</text>')
        for phase in ("sampling", "learning"):
            y += 8
            lines.append(f'<text x="8" y="{y + 15}">{phase}</text>')
            x = float(BAR_LEFT)
            held = {part.name: part.bytes for part in plan.parts if part.phase in ("always", phase)}
            for name, colour in PART_COLOURS.items():
                width = held.get(name, 0) / 1e9 * GIGABYTE_WIDTH
                lines.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="22" fill="{colour}"/>')
                x += width
            total = sum(held.values()) / 1e9
            lines.append(f'<text x="{x + 6:.1f}" y="{y + 15}">{total:.2f} GB</text>')
            y += 22
        y += 10
    for number, (name, colour) in enumerate(PART_COLOURS.items()):
        if number % 3 == 0:
            y += 20
        x = 8 + 210 * (number % 3)
        lines.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
        lines.append(f'<text x="{x + 18}" y="{y}">{name}</text>')
    return MEMORY.format(height=y + 14, body="\n".join(lines))


def draw_curve(run: Path) -> str:
    """Return the curves of a run as an SVG document."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    rewards = [float(row["reward/mean"]) for row in read_metrics(run / "metrics.jsonl") if "reward/mean" in row]
    measured = [row for row in summary["accuracy"] if not row["name"].endswith(", transfer")]
    warm_up = WARM_UP_SHARE * len(rewards)
    at = {"before": 0.0, "after SFT": warm_up, "after RL": warm_up + len(rewards)}
    accuracy = [(at[row["name"]], row["accuracy"]) for row in measured if row["name"] in at]
    chart = line_chart(
        [("accuracy", accuracy), ("reward", [(warm_up + step, value) for step, value in enumerate(rewards, start=1)])]
    ).replace("<svg ", '<svg width="460" height="220" ', 1)
    for series, colour in enumerate(SERIES, start=1):  # some readers of SVG know no variables
        chart = chart.replace(f"--line: var(--series-{series})", f"stroke: {colour}")
    told = ", ".join(f"{100 * row['accuracy']:.1f} % of {row['count']} {row['name']}" for row in measured)
    left, right = 62.0, 458.0
    border = left + (right - left) * WARM_UP_SHARE / (1 + WARM_UP_SHARE)
    return CURVE.format(chart=chart, accuracy=told, border=border, right=border + 6)


async def three_transcripts(run: Path) -> str:
    """Return what was sampled for one held-out task in each measurement, a line for each call: the first task that only
    the last measurement has right.

    Raises:
        SystemExit: there is no such task.
    """
    store = SqlLightningStore(run / "rollouts.db")
    found: dict[str, dict[str, tuple[float, list[str]]]] = {}
    for rollout in await store.query_rollouts(sort_by="start_time", sort_order="asc"):
        phase = (rollout.metadata or {}).get("evaluation")
        if phase not in PHASES:
            continue
        spans = await store.query_spans(rollout.rollout_id)
        rows = TraceToMessages().adapt(spans)
        question = str(rollout.input["question"])
        if rows:
            found.setdefault(question, {})[phase] = (find_final_reward(spans) or 0.0, _lines(rows[-1]["messages"]))
    for question, of_phase in found.items():
        rewards = [of_phase[phase][0] for phase in PHASES if phase in of_phase]
        if [reward >= 1 for reward in rewards] == [False, False, True]:
            parts = [f"{phase}:\n" + "\n".join(f"  {line}" for line in of_phase[phase][1]) for phase in PHASES]
            return "\n".join([question, *parts])
    raise SystemExit(f"{run} has no task that only the last measurement has right")


def _lines(messages: list[dict[str, Any]]) -> list[str]:
    """Return a conversation after its question: calls with their results, and the answer."""
    lines: list[str] = []
    for message in messages:
        if message["role"] == "assistant":
            for call in message.get("tool_calls") or []:
                (argument,) = json.loads(call["function"]["arguments"]).values()
                lines.append(f"{call['function']['name']}({argument!r})")
            if message.get("content"):
                lines += textwrap.wrap(" ".join(str(message["content"]).split()), COLUMNS)
        elif message["role"] == "tool":
            lines[-1] += f" = {message['content']}"
    return lines


def main() -> None:
    """Draw the picture of memory, and both pictures of the run that the command line names."""
    if len(sys.argv) > 2:
        raise SystemExit(__doc__)
    (HERE / "memory.svg").write_text(draw_memory(memory_plans()), encoding="utf-8")
    if len(sys.argv) == 1:
        return
    run = Path(sys.argv[1])
    (HERE / "curve.svg").write_text(draw_curve(run), encoding="utf-8")
    sys.stdout.write(asyncio.run(three_transcripts(run)) + "\n")


if __name__ == "__main__":
    main()
