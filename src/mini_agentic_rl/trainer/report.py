"""`report.html`: the report of a run, in one file that needs no other file, no script and no network.

It reads the files of the run folder and leaves out what is missing, so it can be written at any time, also for a run
that was stopped early.

Keys of a summary that it reads: `verdict` (`summary.Verdict`), `accuracy` (list of `AccuracyRow`), `checks`
(`evaluations.check_rows`), `seconds` (phase → seconds), `peak_memory_bytes`, `versions` (package → version), `seed`,
`kernels`, and `untrained` (reason → number of rollouts that gave nothing to train on).

The page is a Jinja template that escapes every value. Charts are inline SVG. Their colours are CSS variables
(`--series-1` …, `--grid`, `--muted`), for light and dark pages.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

from ..adapter import text_of
from ..files import write_text
from ..metrics import HEADLINE_FAMILIES, RunView, diagnose, duration, number, percent
from ..redaction import without_secrets_within
from .run_folder import RunFolder

Points = Sequence[tuple[float, float]]

_MAX_SERIES = 6
_WIDTH, _HEIGHT = 460, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 10, 28
_MAX_POINTS = 400
_SMOOTH_FROM = 12
_NO_METRICS = ("time", "phase", "step")
_MAX_SHOWN = 4000
"""Characters of one message; the page says how many more are left out."""
_IN_PERCENT = ("accuracy",)
_TITLES = {"tokens_per_second": "tokens / s", "memory_gib": "memory (GiB)"}


def line_chart(series: Sequence[tuple[str, Points]], *, percent: bool = False) -> str:
    """Return an SVG element with a line for each (name, points); points are (x, y), ordered by x.

    A line of many points is drawn faintly under its moving average. Series without a finite point are left out; with
    none left the result is empty. At most `_MAX_SERIES` are drawn.

    Args:
        series: the lines.
        percent: label the y axis in percent.
    """
    drawn = [(name, _thin([(x, y) for x, y in points if math.isfinite(y)])) for name, points in series]
    drawn = [(name, points) for name, points in drawn if points][:_MAX_SERIES]
    if not drawn:
        return ""
    xs = [x for _, points in drawn for x, _ in points]
    ys = [y for _, points in drawn for _, y in points]
    x_ticks = _ticks(min(xs), max(xs))
    y_ticks = _ticks(min(ys), max(ys))
    x_low, x_high = min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1
    y_low, y_high = min(y_ticks[0], min(ys)), max(y_ticks[-1], max(ys))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / (x_high - x_low) * (_WIDTH - _LEFT - _RIGHT)
        up = (y - y_low) / (y_high - y_low) * (_HEIGHT - _TOP - _BOTTOM)
        return _LEFT + across, _HEIGHT - _BOTTOM - up

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(", ".join(n for n, _ in drawn))}">']
    for tick in y_ticks:
        _, y = place(x_low, tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{_label(tick, percent)}</text>')
    for tick in x_ticks:
        if x_low <= tick <= x_high and tick == int(tick):
            x, _ = place(tick, y_low)
            parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 10}" text-anchor="middle">{_label(tick, False)}</text>')
    for index, (name, points) in enumerate(drawn, start=1):
        colour = f'style="--line: var(--series-{index})"'
        if len(points) == 1:
            x, y = place(*points[0])
            parts.append(f'<circle {colour} cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
        lines = [(' class="raw"', points, "")] if len(points) >= _SMOOTH_FROM else []
        lines.append(("", _smooth(points), f"<title>{escape(name)}</title>"))
        for style, line, title in lines:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in line))
            parts.append(f'<polyline{style} {colour} points="{path}">{title}</polyline>')
    parts.append("</svg>")
    return "".join(parts)


def _thin(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most `_MAX_POINTS` points, each the mean of an equal share."""
    share = math.ceil(len(points) / _MAX_POINTS)
    shares = [points[start : start + share] for start in range(0, len(points), share or 1)]
    return [(fmean(x for x, _ in part), fmean(y for _, y in part)) for part in shares] if share > 1 else points


def _smooth(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return points as a moving average; few points as they are."""
    if len(points) < _SMOOTH_FROM:
        return points
    reach = max(2, len(points) // 20)
    windows = [points[max(0, index - reach) : index + reach + 1] for index in range(len(points))]
    return [(x, fmean(y for _, y in window)) for (x, _), window in zip(points, windows, strict=True)]


def _ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers whose range holds [low, high]."""
    if high - low < 1e-9 * max(abs(low), abs(high), 1e-9):
        margin = abs(low) * 0.1
        low, high = (low - margin, high + margin) if margin else (0.0, 1.0)
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def _label(value: float, percent: bool) -> str:
    if percent:
        return f"{100 * value:.4g} %"
    return number(value) if value else "0"


def write_report(
    folder: RunFolder,
    *,
    summary: Mapping[str, Any],
    metrics_rows: Sequence[Mapping[str, Any]],
    transcripts: Sequence[Mapping[str, Any]],
    path: Path | None = None,
) -> Path:
    """Write the report of a run and return its path.

    Args:
        folder: The run; its configuration is shown as the settings.
        summary: See the top of this module; anything may be missing.
        metrics_rows: Rows of `metrics.jsonl` (`metrics.read_metrics`); may be empty.
        transcripts: Conversations to show, each with `messages` (OpenAI messages), and optionally `title`, `reward`
            and `note`.
        path: the file; None is the one of the folder.

    Raises:
        OSError: the file cannot be written; an earlier report is then untouched.
    """
    from jinja2 import Environment

    summary, transcripts = without_secrets_within(summary), without_secrets_within(transcripts)
    spent: dict[str, Any] = {name: duration(seconds) for name, seconds in (summary.get("seconds") or {}).items()}
    if summary.get("peak_memory_bytes"):
        spent["peak memory"] = f"{summary['peak_memory_bytes'] / 2**30:.2f} GiB"
    spent |= {name: summary[name] for name in ("kernels", "seed") if summary.get(name) is not None}
    config = folder.read_config()
    eval_size = config.get("eval_size")
    view = RunView.of_rows(metrics_rows, eval_size=eval_size if isinstance(eval_size, int) else None)
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(percent=percent, json=_json, text=lambda value: text_of(value or "", _MAX_SHOWN))
    page = environment.from_string(_PAGE).render(
        name=folder.path.resolve().name,
        style=_STYLE,
        summary=summary,
        transcripts=transcripts,
        spent=spent,
        config=config,
        findings=diagnose(view) if view.steps else None,
        figures=_figures(metrics_rows),
    )
    target = path or folder.report_path
    write_text(target, page, private=True)
    return target


def _figures(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a chart for each family of metrics, of the points (step, number); those that a person watches come
    first."""
    families: dict[str, dict[str, list[tuple[float, float]]]] = {name: {} for name in HEADLINE_FAMILIES}
    for row in rows:
        for name, value in row.items():
            if name not in _NO_METRICS and isinstance(value, int | float):
                points = families.setdefault(name.split("/")[0], {}).setdefault(name, [])
                points.append((float(row.get("step", len(points))), float(value)))
    figures = []
    for family, series in families.items():
        shown = list(series.items())[:_MAX_SERIES]
        figure = {
            "title": _TITLES.get(family, family.replace("_", " ")),
            "chart": line_chart(shown, percent=family in _IN_PERCENT),
            "names": [name.removeprefix(family + "/") for name, _ in shown],
            "left_out": len(series) - len(shown),
        }
        if figure["chart"]:
            figures.append(figure)
    return figures


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


_PAGE = """<!DOCTYPE html>
{% macro code(text) %}
{% for part in text.split("`") %}
{% if loop.index0 % 2 %}<code>{{ part }}</code>{% else %}{{ part }}{% endif %}
{% endfor %}
{% endmacro %}
{% macro shown(value) %}
{% set text = value | text %}
{{ text.text }}{% if text.more %} … ({{ text.more }} more characters){% endif %}
{% endmacro %}
{% macro pairs(title, values) %}
{% if values %}
<section><h2>{{ title }}</h2><div class="scroll"><table class="pairs">
{% for key, value in values.items() %}
<tr><th scope="row">{{ key }}</th><td>{{ value | json }}</td></tr>
{% endfor %}
</table></div></section>
{% endif %}
{% endmacro %}
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ name }} – mini-agentic-rl</title>
<style>{{ style | safe }}</style>
</head>
<body>
<main>
<h1>{{ name }}</h1>
{% if summary.verdict %}
<section><h2>Verdict</h2><p class="verdict">{{ summary.verdict.line }}</p>
{% if summary.verdict.advice %}
<p>What to try:</p><ul class="doctor">{% for text in summary.verdict.advice %}<li>{{ code(text) }}</li>{% endfor %}</ul>
{% endif %}
</section>
{% endif %}
{% if summary.accuracy %}
<section><h2>Accuracy</h2><div class="scroll"><table>
<tr><th></th><th class="number">accuracy</th><th class="number">95 % interval</th><th class="number">correct</th>
<th class="wide"><span class="ends"><span>0 %</span><span>100 %</span></span></th></tr>
{% for row in summary.accuracy %}
<tr><th scope="row">{{ row.name }}</th><td class="number">{{ row.accuracy | percent }}</td>
<td class="number">{{ "%.1f" % (100 * row.low) }} – {{ row.high | percent }}</td>
<td class="number">{{ "%g" % row.correct }} of {{ row["count"] }}</td>
<td><svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
<rect class="track" width="100" height="10"/>
<rect class="value" width="{{ "%.2f" % (100 * row.accuracy) }}" height="10"/>
<line class="interval" x1="{{ "%.2f" % (100 * row.low) }}" x2="{{ "%.2f" % (100 * row.high) }}" y1="5" y2="5"/>
</svg></td></tr>
{% endfor %}
</table></div></section>
{% endif %}
{% if summary.checks %}
<section><h2>Other checks</h2><div class="scroll"><table>
<tr><th></th><th>check</th><th class="number">mean</th><th class="number">95 % interval</th>
<th class="number">problems</th></tr>
{% for row in summary.checks %}
<tr><th scope="row">{{ row.name }}</th><td>{{ row.check }}</td><td class="number">{{ "%.3g" % row.mean }}</td>
<td class="number">{{ "%.3g" % row.low }} – {{ "%.3g" % row.high }}</td><td class="number">{{ row["count"] }}</td></tr>
{% endfor %}
</table></div></section>
{% endif %}
{% if findings is not none %}
<section><h2>What the doctor says</h2>
{% if findings %}
<ul class="doctor">
{% for finding in findings %}
<li class="{{ finding.level }}">
<strong>{{ finding.head }}</strong>: {{ finding.seen }}. {{ code(finding.advice) }}.</li>
{% endfor %}
</ul>
{% else %}
<p class="muted">Nothing is wrong.</p>
{% endif %}
</section>
{% endif %}
<section><h2>Curves</h2><div class="figures">
{% for figure in figures %}
<figure><figcaption>{{ figure.title }}</figcaption>{{ figure.chart | safe }}
{% if figure.names | length > 1 %}
<ul>
{% for name in figure.names %}<li style="--line: var(--series-{{ loop.index }})">{{ name }}</li>{% endfor %}
</ul>
{% endif %}
{% if figure.left_out %}<p class="muted">{{ figure.left_out }} more in metrics.jsonl</p>{% endif %}
</figure>
{% else %}
<p class="muted">No metrics were logged.</p>
{% endfor %}
</div></section>
{{ pairs("Time and memory", spent) }}
{{ pairs("Rollouts that gave nothing to train on", summary.untrained) }}
{% if transcripts %}
<section><h2>Transcripts</h2>
{% for transcript in transcripts %}
<details open><summary>{{ transcript.title or "Conversation" }}
{% if transcript.reward is not none and transcript.reward is defined %}
<span class="badge">reward {{ "%.3g" % transcript.reward }}</span>
{% endif %}
</summary>
{% if transcript.note %}<p class="muted">{{ transcript.note }}</p>{% endif %}
{% for message in transcript.messages or [] %}
<div class="message {{ message.role if message.role in ("system", "user", "assistant", "tool") else "other" }}">
<span class="role">{{ message.role }}</span>
{% if (message.content | text).text %}<p>{{ shown(message.content) }}</p>{% endif %}
{% for call in message.tool_calls or [] %}
{% set function = call.function or {} %}
<p class="call">{{ shown(function.name) }} {{ shown(function.arguments) }}</p>
{% endfor %}
</div>
{% endfor %}
</details>
{% endfor %}
</section>
{% endif %}
{{ pairs("Settings", config) }}
{{ pairs("Versions", summary.versions) }}
</main>
</body>
</html>
"""
"""The page as a Jinja template; every value is escaped, except for the style sheet and the charts."""

_STYLE = """
:root {
  color-scheme: light dark;
  --page: #fbfaf8; --card: #ffffff; --ink: #22262b; --muted: #68707a; --grid: #e4e2dd; --accent: #2f6fb2;
  --system: #f0efeb; --user: #e4eefa; --assistant: #eef5e9; --tool: #faf1de;
  --series-1: #2f6fb2; --series-2: #c2571a; --series-3: #3b8a4e; --series-4: #8a4fa3; --series-5: #a8841b;
  --series-6: #5d6670; --fault: #b3261e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #16181b; --card: #1e2125; --ink: #e3e5e8; --muted: #98a0aa; --grid: #33373d; --accent: #6ea8e6;
    --system: #26292e; --user: #1f3047; --assistant: #21331f; --tool: #3a301a;
    --series-1: #6ea8e6; --series-2: #ee9157; --series-3: #74c089; --series-4: #c394dc; --series-5: #d9b859;
    --series-6: #a5adb7; --fault: #f2938c;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 24px 16px 64px; }
h1 { font-size: 26px; margin: 8px 0 20px; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 0 0 12px; }
section { background: var(--card); border: 1px solid var(--grid); border-radius: 10px;
  padding: 18px; margin: 0 0 18px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: 6px 14px 6px 0; border-top: 1px solid var(--grid); vertical-align: middle;
  overflow-wrap: anywhere; }
tr:first-child > * { border-top: 0; }
th { font-weight: 500; color: var(--muted); white-space: nowrap; }
.pairs th { width: 1%; padding-right: 40px; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.wide { width: 40%; min-width: 160px; }
.ends { display: flex; justify-content: space-between; font-size: 12px; }
.muted { color: var(--muted); margin: 4px 0; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(320px, 100%), 1fr)); gap: 18px; }
figure { margin: 0; min-width: 0; }
figcaption { font-weight: 500; margin-bottom: 4px; }
figure ul { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 2px 0 0; padding: 0 0 0 12px;
  font-size: 13px; }
figure li::before { content: ""; display: inline-block; width: 14px; height: 3px; margin-right: 6px;
  vertical-align: middle; background: var(--line); }
svg { display: block; width: 100%; height: auto; }
svg text { font: 11px system-ui, sans-serif; fill: var(--muted); }
svg polyline { fill: none; stroke: var(--line); stroke-width: 2; stroke-linejoin: round; }
svg .raw { stroke-width: 1; opacity: 0.45; }
svg circle { fill: var(--line); }
svg .grid { stroke: var(--grid); }
svg.bar { height: 12px; }
.bar .track { fill: var(--grid); opacity: 0.6; }
.bar .value { fill: var(--accent); opacity: 0.55; }
.bar .interval { stroke: var(--ink); stroke-width: 2; vector-effect: non-scaling-stroke; }
details { border-top: 1px solid var(--grid); padding: 10px 0; }
details:first-of-type { border-top: 0; padding-top: 0; }
summary { cursor: pointer; font-weight: 500; }
.badge { font-weight: 400; font-size: 13px; border: 1px solid var(--grid); border-radius: 9px; padding: 1px 8px; }
.message { border-radius: 8px; padding: 8px 12px; margin: 8px 0; max-width: 85%; background: var(--system); }
.message p { margin: 2px 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.message.user { background: var(--user); }
.message.assistant { background: var(--assistant); margin-left: auto; }
.message.tool { background: var(--tool); }
.verdict { font-size: 17px; font-weight: 500; margin: 0; }
.doctor { margin: 0; padding-left: 20px; }
.doctor li { margin: 6px 0; }
.doctor .fault strong { color: var(--fault); }
.role { font-size: 12px; color: var(--muted); }
.call { font-family: ui-monospace, monospace; font-size: 13px; }
@media print { section { break-inside: avoid; } }
"""
"""The style sheet: light and dark by the reader's preference, readable on a telephone and on paper."""
