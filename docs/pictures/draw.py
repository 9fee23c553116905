"""Draw the pictures of the README out of a run of the main job.

    python docs/pictures/draw.py outputs/math-agent

`curve.svg` shows the measured accuracy and the reward of the training rollouts, `conversation.svg` a conversation of
the last measurement in which the agent called its tool and was right.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.text import Text

from mini_agentic_rl.adapter import TraceToMessages
from mini_agentic_rl.emitter import find_final_reward
from mini_agentic_rl.metrics import read_metrics
from mini_agentic_rl.store import SqlLightningStore
from mini_agentic_rl.trainer.charts import line_chart

HERE = Path(__file__).parent
COLUMNS = 100
FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Fonts that Rich loads from a server; without them the reader's own is taken."""
SYSTEM_CHARACTERS = 200
COLOURS = {"system": "bright_black", "user": "cyan", "assistant": "green", "tool": "yellow"}
SERIES = ("#2f6fb2", "#c2571a")
CURVE = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 480 262" font-family="system-ui, sans-serif">
<style>
text {{ font-size: 11px; fill: #68707a; }}
polyline {{ fill: none; stroke-width: 2; stroke-linejoin: round; }}
.raw {{ stroke-width: 1; opacity: 0.45; }} .grid {{ stroke: #e4e2dd; }}
</style>
<rect width="480" height="262" fill="#ffffff"/>
<text x="62" y="18" style="fill: #2f6fb2">accuracy of {count}: {accuracy}</text>
<text x="62" y="34" style="fill: #c2571a">mean reward of the training rollouts, by RL step</text>
<g transform="translate(10 40)">{chart}</g>
</svg>
"""


def draw_curve(run: Path) -> str:
    """Return the curves of a run as an SVG document."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    rewards = [float(row["reward/mean"]) for row in read_metrics(run / "metrics.jsonl") if "reward/mean" in row]
    measured = summary["accuracy"]
    accuracy = [(0.0 if row["name"] != "after RL" else float(len(rewards)), row["accuracy"]) for row in measured]
    chart = line_chart(
        [("accuracy", accuracy), ("reward", [(float(step), value) for step, value in enumerate(rewards, start=1)])]
    ).replace("<svg ", '<svg width="460" height="220" ', 1)
    for series, colour in enumerate(SERIES, start=1):  # some readers of SVG know no variables
        chart = chart.replace(f"--line: var(--series-{series})", f"stroke: {colour}")
    told = ", ".join(f"{100 * row['accuracy']:.1f} % {row['name']}" for row in measured)
    return CURVE.format(chart=chart, count=measured[-1]["count"], accuracy=told)


async def find_conversation(run: Path) -> list[dict[str, Any]]:
    """Return the messages of the latest rollout that called a tool and was right."""
    store = SqlLightningStore(run / "rollouts.db")
    rollouts = await store.query_rollouts(status_in=["succeeded"], sort_by="start_time", sort_order="desc", limit=200)
    for rollout in rollouts:
        spans = await store.query_spans(rollout.rollout_id)
        rows = TraceToMessages().adapt(spans)
        if rows and (find_final_reward(spans) or 0) >= 1 and rows[-1]["tools"]:
            messages = rows[-1]["messages"]
            if any(message["role"] == "tool" for message in messages):
                return messages
    raise SystemExit(f"{run} holds no right conversation with a tool call")


def draw_conversation(messages: list[dict[str, Any]]) -> str:
    """Return the conversation as an SVG document of a terminal."""
    console = Console(record=True, width=COLUMNS, file=open("/dev/null", "w"), force_terminal=True)  # noqa: SIM115
    for message in messages:
        colour = COLOURS.get(message["role"], "white")
        text = str(message.get("content") or "")
        if message["role"] == "system" and len(text) > SYSTEM_CHARACTERS:
            text = text[:SYSTEM_CHARACTERS].rsplit(" ", 1)[0] + " …"
        calls = [
            Text(f"{call['function']['name']}({call['function']['arguments']})", style="bold magenta")
            for call in message.get("tool_calls") or []
        ]
        body = Group(*([Text(text)] if text else []), *calls)
        console.print(Panel(body, title=message["role"], title_align="left", border_style=colour))
    drawn = console.export_svg(title="after reinforcement learning")
    return FONTS.sub("", drawn)


def main() -> None:
    """Draw both pictures of the run that the command line names."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    run = Path(sys.argv[1])
    (HERE / "curve.svg").write_text(draw_curve(run), encoding="utf-8")
    (HERE / "conversation.svg").write_text(draw_conversation(asyncio.run(find_conversation(run))), encoding="utf-8")


if __name__ == "__main__":
    main()
