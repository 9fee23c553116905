"""What is written is whole, has one writer, and is readable by those whom the umask lets read it."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mini_agentic_rl.errors import UserError
from mini_agentic_rl.files import LOCK_FILE, DiskFullError, disk_failure, one_writer, write_folder, write_text
from mini_agentic_rl.policy import write_state


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_weights_get_the_permissions_of_any_new_file(tmp_path, umask, mode):
    def write(folder):
        (folder / "inner").mkdir()
        save_file({"weight": torch.zeros(2)}, folder / "inner" / "model.safetensors")  # makes a file of mode 0600
        handle, _ = tempfile.mkstemp(dir=folder)
        os.close(handle)

    before = os.umask(umask)
    try:
        write_folder(tmp_path / "model", write)
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "model").rglob("*") if path.is_file()]
    assert [stat.S_IMODE(path.stat().st_mode) for path in files] == [mode, mode]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_that_cannot_take_its_place_leaves_the_earlier_one(tmp_path, monkeypatch):
    target, replace = tmp_path / "model", os.replace
    write_folder(target, lambda folder: folder.joinpath("a").write_text("earlier"))

    def fails_once(source, destination):
        if Path(source).name.startswith(".partial-"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, destination)

    monkeypatch.setattr(os, "replace", fails_once)
    with pytest.raises(DiskFullError):
        write_folder(target, lambda folder: folder.joinpath("a").write_text("later"))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (target / "a").read_text() == "earlier"


FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="the device that is always full is of Linux")


@FULL
def test_a_pipe_gets_what_is_written_and_is_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "result")
    assert (os.read(reader, 100), pipe.is_fifo()) == (b"result", True)
    os.close(reader)


def test_a_state_that_cannot_be_written_says_why(tmp_path):
    with pytest.raises((OSError, RuntimeError)) as caught:
        write_state(Path("/dev/full"), {"tensor": torch.zeros(100_000)})
    assert disk_failure(caught.value, tmp_path) == os.strerror(errno.ENOSPC)


@FULL
def test_what_torch_cannot_write_by_itself_is_a_failure_of_the_disk(tmp_path):
    with pytest.raises(RuntimeError) as caught:
        torch.save({"tensor": torch.zeros(100_000)}, "/dev/full")
    assert disk_failure(caught.value, tmp_path) == os.strerror(errno.EIO)


def test_an_error_of_something_else_is_no_failure_of_the_disk(tmp_path):
    assert disk_failure(ValueError("a number is too large"), tmp_path) is None


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
