"""The disk fails at every write, for want of room and broken, once and for good: what was told to be kept is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import failing_disk
from .conftest import SIZE, Attack
from .failing_disk import Done, Preloaded

HERE = Path(__file__).parent
EVERY = max(1, round(1 / SIZE))


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Preloaded]:
    """Start processes whose disk can be made to fail."""
    why = failing_disk.missing()
    if why is not None:
        pytest.skip(why)
    made = Preloaded(tmp_path_factory.mktemp("preloaded"))
    yield made
    made.close()


def _count(attack: Attack, done: Done) -> None:
    """Count the tries that a program has made."""
    for line in done.stdout.splitlines():
        what, cause, seconds = json.loads(line)
        with attack.attempt(what):
            assert cause is None, cause
        attack.row.slowest_s = max(attack.row.slowest_s, seconds)
    with attack.attempt("the program"):
        assert done.status == 0, done.stderr[-3000:]
    attack.row.tried -= 1
    attack.row.held -= done.status == 0


@pytest.mark.timeout(7200)
def test_the_disk_fails_at_each_operation_of_a_checkpoint(attack: Attack, preloaded: Preloaded, tmp_path: Path) -> None:
    _count(attack, preloaded.run(HERE / "failing_checkpoint.py", str(tmp_path), str(EVERY), timeout=3600))


@pytest.mark.timeout(7200)
def test_the_disk_fails_at_each_write_of_a_store(attack: Attack, preloaded: Preloaded, tmp_path: Path) -> None:
    _count(attack, preloaded.run(HERE / "failing_store.py", str(tmp_path), str(EVERY), timeout=3600))
