"""The curves of a run as a picture, drawn by matplotlib (the extra `plots`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final, Literal, get_args

from ..errors import MissingPackageError
from ..files import write_bytes
from .charts import MAX_SERIES, moving_average, series_by_family

PictureFormat = Literal["png", "svg", "pdf"]
PICTURE_FORMATS: Final[tuple[PictureFormat, ...]] = get_args(PictureFormat)

_COLUMNS: Final = 3
_WIDTH, _HEIGHT = 4.6, 2.9
_DOTS: Final = 130
_COLOURS: Final = ("#2f6fb2", "#c2571a", "#3b8a4e", "#8a4fa3", "#a8841b", "#5d6670")
_PERCENT: Final = ("accuracy",)


def draw_curves(
    rows: Sequence[Mapping[str, Any]],
    path: Path,
    *,
    form: PictureFormat,
    title: str,
    measured: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Draw a chart for each family of metrics into one picture, and return its path.

    Args:
        rows: of `metrics.jsonl`.
        measured: accuracies with their intervals: `step`, `accuracy`, `low`, `high`.

    Raises:
        MissingPackageError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(
            "a picture of the curves", "matplotlib", extra="plots", setting="file_format"
        ) from error
    families = {name: series for name, series in series_by_family(rows).items() if _points(series)}
    lines = max(1, math.ceil(len(families) / _COLUMNS))
    columns = max(1, min(_COLUMNS, len(families)))
    figure = Figure(figsize=(_WIDTH * columns, _HEIGHT * lines + 0.4), layout="constrained")
    figure.suptitle(title.replace("$", r"\$"))
    for number, (family, series) in enumerate(families.items(), 1):
        axes = figure.add_subplot(lines, columns, number)
        _draw_family(axes, family, series, measured if family == "accuracy" else ())
    if not families:
        figure.text(0.5, 0.5, "no metrics were logged yet", ha="center")
    drawn = BytesIO()
    # Without the date the same run gives the same file.
    figure.savefig(drawn, format=form, dpi=_DOTS, metadata={"Date": None} if form == "svg" else None)
    write_bytes(path, drawn.getvalue(), private=True)
    return path


def _points(series: Mapping[str, Sequence[tuple[float, float]]]) -> bool:
    return any(math.isfinite(y) for points in series.values() for _, y in points)


def _draw_family(
    axes: Any,
    family: str,
    series: Mapping[str, list[tuple[float, float]]],
    measured: Sequence[Mapping[str, Any]],
) -> None:
    scale = 100.0 if family in _PERCENT else 1.0
    for colour, (name, points) in zip(_COLOURS, list(series.items())[:MAX_SERIES], strict=False):
        finite = [(x, scale * y) for x, y in points if math.isfinite(y)]
        if not finite:
            continue
        smooth = moving_average(finite)
        if smooth is not finite:
            axes.plot(*zip(*finite, strict=True), color=colour, alpha=0.35, linewidth=0.8)
        marker = "o" if len(finite) < 6 else None
        label = name.removeprefix(f"{family}/").replace("$", r"\$")
        axes.plot(*zip(*smooth, strict=True), color=colour, label=label, marker=marker, markersize=3)
    drawn = {point for points in series.values() for point in points}
    for row in measured:
        if (float(row["step"]), float(row["accuracy"])) not in drawn:  # of other tasks, as those of the transfer
            continue
        axes.vlines(row["step"], scale * row["low"], scale * row["high"], color=_COLOURS[0], alpha=0.5)
    axes.set_title(family.replace("_", " ").replace("$", r"\$") + (" (%)" if scale != 1 else ""), fontsize=10)
    axes.set_xlabel("step", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)
    if len(series) > 1:
        axes.legend(fontsize=7, frameon=False)
