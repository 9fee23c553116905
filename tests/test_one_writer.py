"""One writer for a folder, and a lock that nobody leaves behind."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mini_agentic_rl.errors import UserError
from mini_agentic_rl.files import LOCK_FILE, one_writer

HOLDER = """
import os, sys, time
from pathlib import Path
from mini_agentic_rl.files import one_writer
with one_writer(Path(sys.argv[1])):
    if "fork" in sys.argv:
        begun, tell = os.pipe()
        if os.fork() == 0:
            os.write(tell, b".")  # it has begun, and so let go of what is its parent's
            time.sleep(1)
            os._exit(0)
        os.read(begun, 1)
    print(os.getpid(), flush=True)
    time.sleep(600)
"""


def _hold(folder: Path, *words: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder), *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


@pytest.mark.parametrize("words", [[], ["fork"]])
def test_a_second_process_is_told_who_writes_and_a_killed_one_leaves_no_lock(tmp_path: Path, words: list[str]) -> None:
    with _hold(tmp_path, *words) as holder:
        who = rf"being written by another run: process {holder.pid} on {socket.gethostname()} since \d{{4}}-"
        with pytest.raises(UserError, match=who) as told, one_writer(tmp_path):
            pass
        assert told.value.setting == "output_dir"
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert (tmp_path / LOCK_FILE).exists()
        with one_writer(tmp_path):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_has_one_writer_under_all_of_its_names(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    with _hold(tmp_path / "run") as holder:
        with pytest.raises(UserError, match=str(holder.pid)), one_writer(tmp_path / "link"):
            pass
        holder.kill()


def test_within_the_block_the_same_folder_is_written_by_the_same_one(tmp_path: Path) -> None:
    with one_writer(tmp_path):
        with one_writer(tmp_path):
            pass
        program = HOLDER.replace("time.sleep(600)", "")
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
        )
        assert f"process {os.getpid()}" in done.stderr


def test_a_lock_beside_its_folder_lets_the_folder_be_replaced(tmp_path: Path) -> None:
    with one_writer(tmp_path / "model", beside=True):
        assert [path.name for path in tmp_path.iterdir()] == [".model.lock"]
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with one_writer(tmp_path / "run"):
        assert (tmp_path / "run").is_dir()
    assert "cannot be locked on this file system" in caplog.text


def test_what_cannot_be_a_folder_is_a_mistake_of_its_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file: choose a folder"), one_writer(tmp_path / "file"):
        pass
    with pytest.raises(UserError, match="cannot be written: Not a directory"), one_writer(tmp_path / "file" / "run"):
        pass
