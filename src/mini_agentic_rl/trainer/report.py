"""`report.html`: the report of a run, in one file that needs no other file, no script and no network.

It reads the files of the run folder and leaves out what is missing, so it can be written at any time, also for a run
that was stopped early.

Keys of a summary that it reads: `verdict` (`summary.Verdict`), `accuracy` (list of `AccuracyRow`), `checks`
(`evaluations.check_rows`), `seconds` (phase → seconds), `peak_memory_bytes`, `versions` (package → version), `seed`,
`kernels`, and `untrained` (reason → number of rollouts that gave nothing to train on).

Charts are inline SVG. Their colours are CSS variables (`--series-1` …, `--grid`, `--muted`), for light and dark pages.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

from ..files import write_text
from ..metrics import HEADLINE_FAMILIES, RunView, diagnose, duration, number, percent
from ..redaction import without_secrets_within
from .run_folder import RunFolder

Points = Sequence[tuple[float, float]]

MAX_SERIES = 6
_WIDTH, _HEIGHT = 460, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 10, 28
_MAX_POINTS = 400
_SMOOTH_FROM = 12
_NO_METRICS = ("time", "phase", "step")


def series_by_family(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return the curves of rows of metrics, as points (step, number) by name, within each family; those that a person
    watches come first. Families may be empty."""
    families: dict[str, dict[str, list[tuple[float, float]]]] = {name: {} for name in HEADLINE_FAMILIES}
    for row in rows:
        for name, value in row.items():
            if name not in _NO_METRICS and isinstance(value, int | float):
                points = families.setdefault(name.split("/")[0], {}).setdefault(name, [])
                points.append((float(row.get("step", len(points))), float(value)))
    return families


def line_chart(series: Sequence[tuple[str, Points]], *, percent: bool = False) -> str:
    """Return an SVG element with a line for each (name, points); points are (x, y), ordered by x.

    A line of many points is drawn faintly under its moving average. Series without a finite point are left out; with
    none left the result is empty. At most `MAX_SERIES` are drawn.

    Args:
        series: the lines.
        percent: label the y axis in percent.
    """
    drawn = [(name, _thin([(x, y) for x, y in points if math.isfinite(y)])) for name, points in series]
    drawn = [(name, points) for name, points in drawn if points][:MAX_SERIES]
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
        smooth = moving_average(points)
        if len(points) == 1:
            x, y = place(*points[0])
            parts.append(f'<circle {colour} cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
        if smooth is not points:
            parts.append(f'<polyline class="raw" {colour} points="{_path(points, place)}"/>')
        parts.append(f'<polyline {colour} points="{_path(smooth, place)}"><title>{escape(name)}</title></polyline>')
    parts.append("</svg>")
    return "".join(parts)


def _thin(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most `_MAX_POINTS` points, each the mean of an equal share."""
    share = math.ceil(len(points) / _MAX_POINTS)
    if share <= 1:
        return points
    return [_mean(points[start : start + share]) for start in range(0, len(points), share)]


def moving_average(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return points as a moving average; few points as they are."""
    if len(points) < _SMOOTH_FROM:
        return points
    reach = max(2, len(points) // 20)
    return [(x, _mean(points[max(0, index - reach) : index + reach + 1])[1]) for index, (x, _) in enumerate(points)]


def _mean(points: Points) -> tuple[float, float]:
    xs, ys = zip(*points, strict=True)
    return fmean(xs), fmean(ys)


def _path(points: Points, place: Callable[[float, float], tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))


def _ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers whose range holds [low, high]."""
    if high - low < 1e-9 * max(abs(low), abs(high), 1e-9):
        margin = abs(low) * 0.1 or 1.0
        low, high = low - margin, high + margin
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def _label(value: float, percent: bool) -> str:
    if percent:
        return f"{100 * value:.4g} %"
    return number(value) if value else "0"


_MAX_SHOWN = 4000
"""Characters of one message; the page says how many more are left out."""
_IN_PERCENT = ("accuracy",)
_TITLES = {"tokens_per_second": "tokens / s", "memory_gib": "memory (GiB)"}


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
    summary, transcripts = without_secrets_within(summary), without_secrets_within(transcripts)
    sections = [
        _verdict(summary.get("verdict")),
        _accuracy(summary.get("accuracy") or []),
        _checks(summary.get("checks") or []),
        _doctor(metrics_rows, folder.read_config().get("eval_size")),
        _curves(metrics_rows),
        _time(summary),
        _pairs("Rollouts that gave nothing to train on", summary.get("untrained") or {}),
        _section("Transcripts", "".join(map(_transcript, transcripts))),
        _pairs("Settings", folder.read_config()),
        _pairs("Versions", summary.get("versions") or {}),
    ]
    name = escape(folder.path.resolve().name)
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name} – mini-agentic-rl</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{name}</h1>\n{''.join(section for section in sections if section)}</main>\n</body>\n</html>\n"
    )
    target = path or folder.report_path
    write_text(target, page, private=True)
    return target


def _section(title: str, body: str) -> str:
    """Return a section of the page; empty without a body."""
    return f"<section><h2>{title}</h2>{body}</section>\n" if body else ""


def _verdict(verdict: Mapping[str, Any] | None) -> str:
    """Return the gain from reinforcement learning in one line, and things to try if there is none."""
    if not verdict:
        return ""
    advice = "".join(f"<li>{_code(text)}</li>" for text in verdict["advice"])
    tried = f'<p>What to try:</p><ul class="doctor">{advice}</ul>' if advice else ""
    return _section("Verdict", f'<p class="verdict">{escape(verdict["line"])}</p>{tried}')


def _accuracy(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    lines = [
        f'<tr><th scope="row">{escape(str(row["name"]))}</th><td class="number">{percent(row["accuracy"])}</td>'
        f'<td class="number">{100 * row["low"]:.1f} – {percent(row["high"])}</td>'
        f'<td class="number">{row["correct"]:g} of {row["count"]}</td><td>{_interval_bar(row)}</td></tr>'
        for row in rows
    ]
    head = (
        '<tr><th></th><th class="number">accuracy</th><th class="number">95 % interval</th>'
        '<th class="number">correct</th><th class="wide"><span class="ends">'
        "<span>0 %</span><span>100 %</span></span></th></tr>"
    )
    return _table("Accuracy", head, lines)


def _checks(rows: Sequence[Mapping[str, Any]]) -> str:
    """The lenient check, and the parts of the reward, measurement by measurement."""
    if not rows:
        return ""
    lines = [
        f'<tr><th scope="row">{escape(str(row["name"]))}</th><td>{escape(str(row["check"]))}</td>'
        f'<td class="number">{row["mean"]:.3g}</td>'
        f'<td class="number">{row["low"]:.3g} – {row["high"]:.3g}</td><td class="number">{row["count"]}</td></tr>'
        for row in rows
    ]
    head = (
        '<tr><th></th><th>check</th><th class="number">mean</th><th class="number">95 % interval</th>'
        '<th class="number">problems</th></tr>'
    )
    return _table("Other checks", head, lines)


def _table(title: str, head: str, lines: Sequence[str]) -> str:
    return _section(title, f'<div class="scroll"><table>{head}{"".join(lines)}</table></div>')


def _interval_bar(row: Mapping[str, Any]) -> str:
    """The accuracy as a bar and its interval as a line, on a scale from 0 to 1."""
    low, high, middle = (100 * float(row[key]) for key in ("low", "high", "accuracy"))
    return (
        '<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="100" height="10"/>'
        f'<rect class="value" width="{middle:.2f}" height="10"/>'
        f'<line class="interval" x1="{low:.2f}" x2="{high:.2f}" y1="5" y2="5"/></svg>'
    )


def _doctor(rows: Sequence[Mapping[str, Any]], eval_size: Any) -> str:
    """The findings of the doctor; nothing of a run without a step of reinforcement learning."""
    view = RunView.of_rows(rows, eval_size=eval_size if isinstance(eval_size, int) else None)
    if not view.steps:
        return ""
    items = [
        f'<li class="{finding.level}"><strong>{escape(finding.head)}</strong>: {escape(finding.seen)}. '
        f"{_code(finding.advice)}.</li>"
        for finding in diagnose(view)
    ]
    body = f'<ul class="doctor">{"".join(items)}</ul>' if items else '<p class="muted">Nothing is wrong.</p>'
    return _section("What the doctor says", body)


def _code(text: str) -> str:
    """Return a text with the parts in backticks as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))


def _curves(rows: Sequence[Mapping[str, Any]]) -> str:
    families = series_by_family(rows)
    figures = [_figure(family, series) for family, series in families.items() if series]
    body = "".join(figures) or '<p class="muted">No metrics were logged.</p>'
    return _section("Curves", f'<div class="figures">{body}</div>')


def _figure(family: str, series: Mapping[str, list[tuple[float, float]]]) -> str:
    shown = list(series.items())[:MAX_SERIES]
    drawing = line_chart(shown, percent=family in _IN_PERCENT)
    if not drawing:
        return ""
    legend = ""
    if len(shown) > 1:
        keys = [
            f'<li style="--line: var(--series-{index})">{escape(name.removeprefix(family + "/"))}</li>'
            for index, (name, _) in enumerate(shown, start=1)
        ]
        legend = f"<ul>{''.join(keys)}</ul>"
    left_out = len(series) - len(shown)
    more = f'<p class="muted">{left_out} more in metrics.jsonl</p>' if left_out else ""
    title = escape(_TITLES.get(family, family.replace("_", " ")))
    return f"<figure><figcaption>{title}</figcaption>{drawing}{legend}{more}</figure>"


def _time(summary: Mapping[str, Any]) -> str:
    values: dict[str, Any] = {name: duration(spent) for name, spent in (summary.get("seconds") or {}).items()}
    if summary.get("peak_memory_bytes"):
        values["peak memory"] = f"{summary['peak_memory_bytes'] / 2**30:.2f} GiB"
    if summary.get("kernels"):
        values["kernels"] = summary["kernels"]
    if "seed" in summary:
        values["seed"] = summary["seed"]
    return _pairs("Time and memory", values)


def _transcript(transcript: Mapping[str, Any]) -> str:
    title = escape(str(transcript.get("title") or "Conversation"))
    reward = transcript.get("reward")
    badge = "" if reward is None else f' <span class="badge">reward {float(reward):.3g}</span>'
    note = f'<p class="muted">{escape(str(transcript["note"]))}</p>' if transcript.get("note") else ""
    messages = "".join(_message(message) for message in transcript.get("messages") or [])
    return f"<details open><summary>{title}{badge}</summary>{note}{messages}</details>"


def _message(message: Mapping[str, Any]) -> str:
    role = str(message.get("role", ""))
    kind = role if role in ("system", "user", "assistant", "tool") else "other"
    parts = [f"<p>{_text(content)}</p>" if (content := _content(message.get("content"))) else ""]
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        parts.append(
            f'<p class="call">{_text(str(function.get("name", "")))} {_text(str(function.get("arguments", "")))}</p>'
        )
    return f'<div class="message {kind}"><span class="role">{escape(role)}</span>{"".join(parts)}</div>'


def _content(content: Any) -> str:
    """Plain text of a message: a string, or a list of parts."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text") or f"[{part.get('type')}]") for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def _text(text: str) -> str:
    left_out = len(text) - _MAX_SHOWN
    if left_out > 0:
        return f"{escape(text[:_MAX_SHOWN])} … ({left_out} more characters)"
    return escape(text)


def _pairs(title: str, values: Mapping[str, Any]) -> str:
    if not values:
        return ""
    lines = []
    for key, value in values.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        lines.append(f'<tr><th scope="row">{escape(str(key))}</th><td>{escape(text)}</td></tr>')
    return _section(title, f'<div class="scroll"><table class="pairs">{"".join(lines)}</table></div>')


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
