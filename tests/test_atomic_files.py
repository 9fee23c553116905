"""What is written is readable by those whom the umask lets read it."""

from __future__ import annotations

import os
import stat
import tempfile

import pytest
import torch
from safetensors.torch import save_file

from mini_agentic_rl.atomic_files import write_folder


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
