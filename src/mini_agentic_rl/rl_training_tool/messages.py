"""Error messages that an agent can act on: errors name settings and options of commands, an agent knows parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..errors import UserError

_NAMES: Mapping[str, str] = {
    "adapter": "model_name",
    "full_finetune": "use_lora=false",
    "model": "model_name",
    "no_use_lora": "use_lora=false",
    "total_epochs": "num_epochs",
    "total_steps": "max_steps",
}
_OPTION = re.compile(r"--([a-z][a-z0-9-]*)")


def told(error: Exception) -> str:
    """Return what an error says, with its type if nobody foresaw it."""
    if isinstance(error, UserError):
        return as_parameters(error.spelled(_parameter))
    if isinstance(error, ImportError):
        return as_parameters(str(error))
    return f"{type(error).__name__}: {error}"


def as_parameters(text: str) -> str:
    """`text` in one line, with `output_dir` for `--output-dir`."""
    line = " ".join(text.split())
    return _OPTION.sub(lambda match: _parameter(match[1]), line)


def _parameter(option: str) -> str:
    name = option.replace("-", "_")
    return _NAMES.get(name, name)
