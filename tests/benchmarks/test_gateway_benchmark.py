"""The benchmark of the gateway's own time runs, and counts every request."""

from __future__ import annotations

import json
from pathlib import Path

from processes import run_python
from tiny import tiny_tokenizer

IN_FORKS = Path(__file__).with_name("in_forks.py")


def test_every_way_of_answering_and_recording_is_measured(tmp_path):
    tiny_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    arguments = ["--model", str(tmp_path), "--clients", "2", "--requests", "2", "--prompt-tokens", "60", "--json"]
    arguments += ["--stores", "sqlite", "--step-ms", "1"]
    rows = json.loads(run_python(IN_FORKS, "gateway.py", *arguments)[0])
    ways = ("whole", "burst", "steps", "engine")
    assert [(row["store"], row["answers"]) for row in rows] == [("sqlite", way) for way in ways]
    assert all(row["requests"] == 4 and row["cpu_ms"] > 0 and row["wall_ms"] > 0 for row in rows)
