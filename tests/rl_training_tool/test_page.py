"""The code of the page about the tool runs as it stands there, with a tiny model in place of the embedded one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mini_agentic_rl.policy import load_model

PAGE = Path(__file__).parents[2] / "docs" / "rl-training-tool.md"


@pytest.fixture
def blocks(tiny_folder):
    text = PAGE.read_text(encoding="utf-8").replace('"embedded"', repr(tiny_folder))
    return [
        re.sub(r"(max_new_tokens\W+)\d+", r"\g<1>4", block) for block in re.findall(r"```python\n(.*?)```", text, re.S)
    ]


def test_the_code_of_the_page_runs(blocks, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    assert len(blocks) >= 8
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), {})
        for answer in re.findall(r"^\{\n.*?^\}", capsys.readouterr().out, re.M | re.S):
            found = json.loads(answer)
            assert found["success"] or "did you mean" in found["message"], found
    for folder in ("sft", "grpo", "letters", "custom", "custom-grpo"):
        load_model(str(tmp_path / "output" / folder))
