"""Raw preferences in, one form out: nothing is lost silently, nothing half-written is left, big files stream."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_agentic_rl.datasets import DatasetError, convert, load_examples
from mini_agentic_rl.datasets.convert import CONTRADICTION, DUPLICATE, EXAMPLES, convert_preferences

GOOD = '{"prompt": "布洛芬能和酒一起吃吗？", "chosen": "不能。😀", "rejected": "能"}'
BAD = [
    (GOOD, DUPLICATE),
    ('{"prompt": "布洛芬能和酒一起吃吗？", "chosen": "能", "rejected": "不能。😀"}', CONTRADICTION),
    ('{"prompt": "q", "chosen": "a", "rejected": "a"}', "chosen equals rejected"),
    ('{"prompt": "q", "chosen": "a"', "not valid JSON"),
    ('{"prompt": "q\\ud800", "chosen": "a", "rejected": "b"}', "half a surrogate pair"),
    ("[1]", "not a JSON object"),
    ("null", "not a JSON object"),
    ('{"prompt": "q", "response_a": "a", "response_b": "b", "winner": "tie"}', "tie"),
    ('{"text": "q"}', "no known shape of a preference"),
]


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_every_record_is_written_or_reported_with_its_line_and_reason(tmp_path: Path) -> None:
    source = write(tmp_path / "raw.jsonl", GOOD, "", *(line for line, _ in BAD))
    source.write_bytes("\ufeff".encode() + source.read_bytes() + b'{"prompt": "\xc4\xe3"}\n')
    report = convert_preferences(source, tmp_path / "out.jsonl")
    assert (report.read, report.written) == (2 + len(BAD), 1)
    assert report.written + sum(report.dropped.values()) == report.read
    for place, (_, reason) in enumerate([*BAD, ("", "not UTF-8")], 3):
        assert place in [found["line"] for found in report.examples[reason]]


def test_json_and_gzip_files_are_inputs_too_unless_they_are_cut_off(tmp_path: Path) -> None:
    half = '{"prompt": "q\\ud800", "chosen": "a", "rejected": "b"}'
    (tmp_path / "a.json").write_text(f"[{GOOD}, {half}]", encoding="utf-8")
    whole = gzip.compress(f"{GOOD}\n{half}".encode())
    (tmp_path / "b.jsonl.gz").write_bytes(whole)
    for name in ("a.json", "b.jsonl.gz"):
        report = convert_preferences(tmp_path / name, tmp_path / "out.jsonl")
        assert (report.written, dict(report.dropped)) == (1, {"half a surrogate pair": 1})
    (tmp_path / "b.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DatasetError, match=r"b\.jsonl\.gz cannot be read"):
        convert_preferences(tmp_path / "b.jsonl.gz", tmp_path / "cut.jsonl")
    assert not (tmp_path / "cut.jsonl").exists()


def test_the_report_shows_the_first_records_of_a_reason_and_counts_all(tmp_path: Path) -> None:
    source = write(tmp_path / "raw.jsonl", GOOD, *["{}"] * 40)
    report = convert_preferences(source, tmp_path / "out.jsonl").as_json()
    found = report["dropped"]["no known shape of a preference"]
    assert found["count"] == 40
    assert [row["line"] for row in found["first"]] == list(range(2, 2 + EXAMPLES))
    assert json.loads(json.dumps(report)) == report


@pytest.mark.parametrize("how", ["nothing is left", "it breaks off"])
def test_a_conversion_that_fails_leaves_the_earlier_output(tmp_path: Path, monkeypatch: Any, how: str) -> None:
    target = write(tmp_path / "out.jsonl", "precious")
    if how == "nothing is left":
        with pytest.raises(DatasetError, match=r"no record is a preference \(2 × no known shape"):
            convert_preferences(write(tmp_path / "raw.jsonl", "{}", "{}"), target)
    else:
        first = convert.read_preference(json.loads(GOOD))
        monkeypatch.setattr(convert, "read_preference", Mock(side_effect=[first, KeyboardInterrupt]))
        with pytest.raises(KeyboardInterrupt):
            convert_preferences(write(tmp_path / "raw.jsonl", GOOD, GOOD), target)
    assert target.read_text() == "precious\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "raw.jsonl"]


def test_the_input_is_never_overwritten_and_a_missing_one_is_named(tmp_path: Path) -> None:
    source = write(tmp_path / "raw.jsonl", GOOD)
    with pytest.raises(DatasetError, match=r"output: .* is the input"):
        convert_preferences(source, source)
    with pytest.raises(DatasetError, match=r"input: .*nowhere\.jsonl cannot be read"):
        convert_preferences(tmp_path / "nowhere.jsonl", tmp_path / "out.jsonl")
    assert source.read_text(encoding="utf-8") == GOOD + "\n"


def test_a_big_file_is_not_held_in_memory(tmp_path: Path) -> None:
    text = "x" * 60_000
    with (tmp_path / "raw.jsonl").open("w") as file:
        for index in range(600):
            file.write(json.dumps({"prompt": f"{index} {text}", "chosen": "c", "rejected": "r"}) + "\n")
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from mini_agentic_rl.datasets.convert import convert_preferences\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "report = convert_preferences(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "print(report.written, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path / "raw.jsonl"), str(tmp_path / "out.jsonl")]
    written, grown = map(int, subprocess.run(arguments, check=True, capture_output=True, text=True).stdout.split())
    assert written == 600
    assert grown < 20_000, "kilobytes, of a file of 36 MB"


LINE = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([line.encode() for line, _ in BAD] + [GOOD.encode()]),
    st.dictionaries(st.sampled_from(["prompt", "chosen", "rejected", "messages"]), st.text(max_size=5)).map(
        lambda row: json.dumps(row).encode()
    ),
)


@given(st.lists(LINE, max_size=12))
@settings(max_examples=30, deadline=None)
def test_whatever_the_file_holds_every_line_is_accounted_for(
    tmp_path_factory: pytest.TempPathFactory, lines: list[Any]
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "raw.jsonl").write_bytes(b"\n".join([b'{"prompt":"1","chosen":"2","rejected":"3"}', *lines]))
    report = convert_preferences(folder / "raw.jsonl", folder / "out.jsonl")
    assert report.written + sum(report.dropped.values()) == report.read
    assert len((folder / "out.jsonl").read_text(encoding="utf-8").split("\n")) - 1 == report.written
    assert len(load_examples(folder / "out.jsonl", "preference", split="all")) == report.written
