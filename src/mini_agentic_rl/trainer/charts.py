"""Line charts as inline SVG, drawn here so that a report needs no script and no other file.

Colours come from CSS variables (`--series-1` …, `--grid`, `--muted`), so one drawing serves a light and a dark page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from ..metrics import HEADLINE_FAMILIES, number

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
    """An SVG element with one line for each (name, points); points are (x, y), ordered by x.

    A line of many points is drawn faintly under its moving average. Series without a finite point are left out; with
    none left the result is empty. At most `MAX_SERIES` are drawn.

    Args:
        series: What to draw.
        percent: Label the y axis in percent.
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
    """At most `_MAX_POINTS` points: each the mean of an equal share."""
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
    return sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points)


def _path(points: Points, place: Callable[[float, float], tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers whose range holds [low, high]."""
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
