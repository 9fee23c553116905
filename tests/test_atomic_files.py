"""What is written is readable by those whom the umask lets read it; what cannot be written leaves the earlier one."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mini_agentic_rl.files import DiskFullError, disk_failure, write_folder
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
