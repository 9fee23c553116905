"""kill -9 of what writes a run folder, and of a gateway: everything acknowledged is there and whole afterwards.

`tests/store/test_crash.py` kills the store, `tests/invariant/test_resume.py` a learner, `tests/runner/` a runner.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from mini_agentic_rl.files import one_writer
from mini_agentic_rl.trainer import RunFolder
from processes import PythonProcess
from torture.servers import CHAT, SESSIONS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="fork and SIGKILL are of Unix")

CONFIG = {"model": "m"}
FILES = 2
CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod")
"""Events that change the disk, besides opening a file to write. A kill before a read is one before the next change."""


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

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if writes or event in CHANGES:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        _save(path, step)

    _, status = os.waitpid(_forked(work), 0)
    return os.WIFSIGNALED(status)


def test_a_kill_at_any_file_operation_of_a_checkpoint_leaves_whole_checkpoints(tmp_path: Path) -> None:
    for rewrites in (False, True):  # a step that is there already is replaced
        path = tmp_path / str(rewrites)
        _save(path, 1)
        before = _resumed(path)
        for operation in range(1, 1000):
            step = before if rewrites else operation + 1
            killed = _killed_at(path, step, operation)
            after = _resumed(path)
            assert after in ({before} if rewrites else {before, step}), (rewrites, operation)
            before = after
            if not killed:
                assert operation > 10
                break


def test_a_kill_at_a_random_moment_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    rng = random.Random(0)
    done = tmp_path / "done"

    def work() -> None:
        step = _resumed(tmp_path / "run")
        while True:
            step += 1
            _save(tmp_path / "run", step)
            done.write_text(str(step))  # acknowledged

    for _ in range(8):
        pid = _forked(work)
        while not done.exists():  # the first checkpoint takes longer on a busy machine
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.1))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert _resumed(tmp_path / "run") >= int(done.read_text() or 0)


def test_a_killed_gateway_keeps_every_call_reward_and_deletion_that_it_acknowledged(tmp_path: Path) -> None:
    program, database = tmp_path / "served.py", tmp_path / "sessions.db"
    program.write_text(SESSIONS, encoding="utf-8")
    rewards: dict[str, float] = {}
    deleted: set[str] = set()

    def call_until_killed(url: str, prefix: str) -> None:
        with httpx.Client(base_url=url, headers={"authorization": "Bearer alice"}, timeout=30) as client:
            for number in range(1000):
                name, headers = f"{prefix}-{number}", {"X-Session-Id": f"{prefix}-{number}", "X-Session-Consent": "yes"}
                try:
                    client.post("/v1/chat/completions", json=CHAT, headers=headers).raise_for_status()
                    client.post(f"/v1/sessions/{name}/reward", json={"reward": number}).raise_for_status()
                    rewards[name] = float(number)
                    if number % 3 == 0:
                        rewards.pop(name)
                        client.delete(f"/v1/sessions/{name}").raise_for_status()
                        deleted.add(name)
                except httpx.TransportError:
                    return

    with PythonProcess(program, str(database), held=True) as process:
        url = process.wait_for_line()
        threads = [threading.Thread(target=call_until_killed, args=(url, part)) for part in "abc"]
        for thread in threads:
            thread.start()
        while len(rewards) + len(deleted) < 12 and any(thread.is_alive() for thread in threads):
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        for thread in threads:
            thread.join()
    assert rewards
    assert deleted
    with PythonProcess(program, str(database), held=True) as process:
        url, headers = process.wait_for_line(), {"authorization": "Bearer alice"}
        with httpx.Client(base_url=url, headers=headers, timeout=30) as client:
            for name, reward in rewards.items():
                session = client.get(f"/v1/sessions/{name}").raise_for_status().json()
                assert (session["calls"], [given["reward"] for given in session["rewards"]]) == (1, [reward]), name
            for name in deleted:
                assert client.get(f"/v1/sessions/{name}").status_code == 404, name
