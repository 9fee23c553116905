"""Numbers as people read them: one form for shares, and words that agree with their number."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from mini_agentic_rl.metrics import counted, every, percent


@pytest.mark.parametrize(("count", "told"), [(0, "0 steps"), (1, "1 step"), (2, "2 steps"), (2000, "2,000 steps")])
def test_a_word_agrees_with_its_number(count, told):
    assert counted(count, "step") == told
    assert every(count, "step") == ("the one step" if count == 1 else f"all {told}")


def test_a_word_with_a_plural_of_its_own_gets_it():
    assert (counted(1, "try", "tries"), counted(3, "try", "tries")) == ("1 try", "3 tries")


def test_a_share_is_told_in_one_form():
    assert (percent(0.77), percent(1.0, 0), percent(0.017832, 2)) == ("77.0 %", "100 %", "1.78 %")


def test_nothing_writes_a_share_in_a_form_of_its_own():
    root = Path(__file__).parents[2]
    own = re.compile(r"\{[^{}]*:\.?\d?%\}|:\.\d?f\}%")
    files = subprocess.run(["git", "ls-files", "src", "examples", "scripts"], cwd=root, capture_output=True, text=True)
    read = [root / name for name in files.stdout.split() if name.endswith(".py")]
    assert len(read) > 100
    assert [str(file) for file in read if own.search(file.read_text())] == []
