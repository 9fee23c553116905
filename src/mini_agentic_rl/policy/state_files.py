"""States of torch in files: tensors, numbers and texts, written so that an error says what the disk refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write what `torch.load` reads with `weights_only`.

    Raises:
        OSError: the file cannot be written; it may be the cause or context of an error of torch.
    """
    with path.open("wb") as file:  # given a path, torch writes by itself, and keeps no reason of a failure
        torch.save(dict(state), file)
