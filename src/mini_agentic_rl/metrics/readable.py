"""Numbers as a person reads them, alike on the console, in results and in the report."""

from __future__ import annotations


def number(value: float) -> str:
    """Return a number with four digits that count, and the digits of large ones in groups: 0.02537, 21,910."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.4g}"


def percent(share: float, digits: int = 1) -> str:
    """Return a share of one with so many digits after the point: 0.77 is 77.0 %."""
    return f"{100 * share:.{digits}f} %"


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a number with what it counts: 1 step, 2,000 steps.

    Args:
        one: the word for one.
        many: the word for any other number; None puts an s behind that for one.
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def latest(count: int, one: str) -> str:
    """Return the newest of something: the last step, the last 5 steps."""
    return f"the last {one}" if count == 1 else f"the last {counted(count, one)}"


def every(count: int, one: str) -> str:
    """Return all of something, as the beginning of a sentence: all 8 rollouts, the one rollout."""
    return f"the one {one}" if count == 1 else f"all {counted(count, one)}"


def quantity(family: str, value: float | None) -> str:
    """Return the number of a family of metrics, as its column shows it; empty where there is none."""
    if value is None:
        return ""
    if family == "accuracy":
        return percent(value)
    if family == "memory_gib":
        return f"{value:.2f} GiB"
    if family == "tokens_per_second" and value >= 99.5:
        return f"{value:,.0f}"
    return number(value)


def duration(seconds: float) -> str:
    """Return a time: 12.3 s, 4 min 05 s, 2 h 01 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
