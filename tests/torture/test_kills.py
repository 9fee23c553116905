"""kill -9 at each file operation of a checkpoint and at random moments: what is resumed is whole, and the last."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mini_agentic_rl.files import one_writer
from mini_agentic_rl.trainer import RunFolder

from .conftest import Attack

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="fork and SIGKILL are of Unix")

CONFIG = {"model": "m"}
FILES = 3
OPERATIONS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "os.listdir", "os.scandir")


def _write(folder: Path, step: int) -> None:
    for number in range(FILES):
        (folder / f"{number}.bin").write_bytes(bytes([step % 256]) * 10_000)
    (folder / "state.json").write_text(json.dumps({"step": step}))


def _forked(work: Callable[[], None]) -> int:
    """Run work in a forked process and return its id; the process ends without cleaning up after its parent."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            work()
        os._exit(0)
    return pid


def _save(path: Path, step: int) -> None:
    with one_writer(path):
        run = RunFolder(path)
        run.begin(CONFIG, resume=True)
        run.save_checkpoint(step, lambda folder: _write(folder, step))


def _resumed(path: Path) -> int:
    """Resume, and return the step of the newest checkpoint, after a look that every checkpoint is whole."""
    with one_writer(path):
        run = RunFolder(path)
        run.begin(CONFIG, resume=True)
        for step, folder in run.checkpoints():
            assert json.loads((folder / "state.json").read_text()) == {"step": step}
            for number in range(FILES):
                assert (folder / f"{number}.bin").read_bytes() == bytes([step % 256]) * 10_000
        assert not [path for path in run.path.rglob(".*") if path.name != ".lock"]
        latest = run.latest_checkpoint()
        return 0 if latest is None else latest[0]


def _killed_at(path: Path, step: int, operation: int) -> bool:
    """Write a checkpoint and die at the file operation of this number; return False if there are not so many."""

    def work() -> None:
        left = [operation]

        def count(event: str, arguments: object) -> None:
            if event in OPERATIONS:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        _save(path, step)

    _, status = os.waitpid(_forked(work), 0)
    return os.WIFSIGNALED(status)


def test_a_process_is_killed_at_each_file_operation_of_a_checkpoint(attack: Attack, tmp_path: Path) -> None:
    for rewrites in (False, True):  # a step that is there already is replaced
        path = tmp_path / str(rewrites)
        _save(path, 1)
        for operation in range(1, 1000):
            step = _resumed(path) if rewrites else operation + 1
            before = _resumed(path)
            killed = _killed_at(path, step, operation)
            with attack.attempt((rewrites, operation)):
                assert _resumed(path) in ({before} if rewrites else {before, step})
            if not killed:
                assert operation > 10
                break


def test_a_process_is_killed_at_random_moments(attack: Attack, tmp_path: Path) -> None:
    rng = random.Random(0)
    done = tmp_path / "done"

    def work() -> None:
        step = _resumed(tmp_path / "run")
        while True:
            step += 1
            _save(tmp_path / "run", step)
            done.write_text(str(step))  # acknowledged

    for number in range(attack.times(200)):
        pid = _forked(work)
        time.sleep(rng.uniform(0, 0.1))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with attack.attempt(number):
            text = done.read_text() if done.exists() else ""
            assert _resumed(tmp_path / "run") >= int(text or 0)
    assert done.exists(), "no checkpoint was finished: nothing can be lost"
