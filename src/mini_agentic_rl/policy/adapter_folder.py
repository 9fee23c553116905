"""The folder of an adapter where a model is asked for: which adapter it is, and which base it was trained on."""

from __future__ import annotations

import json
from pathlib import Path

from .embedded import FOLDER
from .errors import PolicyError

ADAPTER_CONFIG = "adapter_config.json"


def adapter_folder(model: str | Path) -> Path | None:
    """The folder of the adapter that `model` stands for; None where it is no adapter.

    That is the folder itself, or `adapter/` inside the folder of a training run.
    """
    folder = Path(model).expanduser()
    return next((found for found in (folder, folder / "adapter") if (found / ADAPTER_CONFIG).is_file()), None)


def base_model_of(folder: Path) -> str:
    """The name or path of the model that the adapter in `folder` was trained on.

    The embedded model is known by the name of its folder, so that an adapter finds it in the cache of any user.

    Raises:
        PolicyError: the adapter does not say, or names another adapter.
    """
    config = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    base = config.get("base_model_name_or_path")
    if not base:
        raise PolicyError(
            f"the adapter {str(folder)!r} does not say which model it was trained on: "
            "give that model with --model, and this folder with --adapter"
        )
    if adapter_folder(base) is not None:
        raise PolicyError(f"the adapter {str(folder)!r} was trained on another adapter, {base!r}: merge that one first")
    return "embedded" if Path(base).name == FOLDER else str(base)
