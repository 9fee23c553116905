"""Convert raw preference data to `{"prompt": […], "chosen": […], "rejected": […]}` of messages.

Input and output are streamed, so they may be larger than memory. Every record is either written or counted in the
report, by the reason why it was left out. The output file is replaced only when the conversion is complete.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

from ..files import rename_over
from .messages import ShapeError
from .preferences import PreferenceFields, read_preference
from .records import BadRecord, read_records
from .rows import DatasetError

DUPLICATE = "the same as an earlier record"
CONTRADICTION = "prefers the other answer of an earlier record"
EXAMPLES = 5
"""Records of each reason that the report shows."""


@dataclass
class ConversionReport:
    """Counts of the records that were written and left out."""

    read: int = 0
    written: int = 0
    shapes: Counter[str] = field(default_factory=Counter)
    """Number of written records by their shape in `preferences.SHAPES`."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Number of records left out, by reason."""
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The first records left out, by reason: `line` (in .json and .parquet files the number) and `detail`."""

    def drop(self, reason: str, place: int, detail: str = "") -> None:
        """Count a record that was left out."""
        self.dropped[reason] += 1
        first = self.examples.setdefault(reason, [])
        if len(first) < EXAMPLES:
            first.append({"line": place, "detail": detail})

    def as_json(self) -> dict[str, Any]:
        """Return the report as a JSON object, the commonest reasons first."""
        return {
            "read": self.read,
            "written": self.written,
            "shapes": dict(self.shapes.most_common()),
            "dropped": {
                reason: {"count": count, "first": self.examples[reason]} for reason, count in self.dropped.most_common()
            },
        }


def convert_preferences(source: Path, target: Path, *, fields: PreferenceFields | None = None) -> ConversionReport:
    """Write the preferences of `source` to `target`, JSON Lines in UTF-8.

    Left out are records of no known shape, with an empty answer, with two equal answers, or with a tie; repeated ones;
    and those that prefer what an earlier record rejects for the same prompt.

    Raises:
        DatasetError: the input cannot be read, the output cannot be written or is the input, or nothing is left.
    """
    if target.exists() and source.exists() and target.samefile(source):
        raise DatasetError(f"{target} is the input; give another file", setting="output")
    report = ConversionReport()
    seen: dict[bytes, bool] = {}
    with _written_whole(target) as file:
        for place, record in read_records(source, setting="input"):
            report.read += 1
            if isinstance(record, BadRecord):
                report.drop(record.reason, place, record.detail)
                continue
            try:
                pair, shape = read_preference(record, fields)
            except ShapeError as error:
                report.drop(error.reason, place, str(error).removeprefix(error.reason).removeprefix(": "))
                continue
            except RecursionError:
                report.drop("nested too deeply", place)
                continue
            prompt, chosen, rejected = (
                json.dumps(pair[name], sort_keys=True) for name in ("prompt", "chosen", "rejected")
            )
            text = "\0".join((prompt, *sorted((chosen, rejected))))  # the same for either order of the answers
            key, order = blake2b(text.encode(), digest_size=16).digest(), chosen < rejected
            if key in seen:
                report.drop(DUPLICATE if seen[key] == order else CONTRADICTION, place)
                continue
            seen[key] = order
            file.write(json.dumps(pair, ensure_ascii=False) + "\n")
            report.written += 1
            report.shapes[shape] += 1
        if not report.written:
            reasons = "; ".join(f"{count} × {reason}" for reason, count in report.dropped.most_common(3))
            raise DatasetError(
                f"{source}: no record is a preference ({reasons or 'the file is empty'})", setting="input"
            )
    return report


@contextmanager
def _written_whole(target: Path) -> Iterator[IO[str]]:
    """Yield a temporary file that replaces `target` at the end of the block, or is removed if that fails."""
    partial = target.with_name(f".partial-{target.name}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        rename_over(partial, target)
    except OSError as error:
        raise DatasetError(f"{target} cannot be written ({error.strerror or error})", setting="output") from error
    finally:
        partial.unlink(missing_ok=True)
