"""peft's configuration of a saved adapter, without the patterns on which peft could spend any time.

peft matches names of layers against regular expressions of the configuration, and Python's engine takes exponential
time for some of them. Which layers an adapter changes is told by the names of its weights: where the configuration has
a pattern for them, they are listed. Other patterns are taken where they are names, with at most one repetition.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from ..errors import UserError

_PART: Final = r"(?:[\w.^$-]|\\[.d])*"
_QUICK: Final = re.compile(rf"{_PART}(?:[*+]{_PART})?")
"""Patterns that are matched in the square of the length of a name, at most."""
_MOST: Final = 100
"""Patterns with a repetition."""
_ALL: Final = "all-linear"
_PREFIX: Final = "base_model.model."


def saved_adapter_config(folder: Path, weights: Iterable[str]) -> Any:
    """Return peft's configuration of the adapter in a folder.

    Args:
        weights: names of the adapter's weights.

    Raises:
        UserError: a pattern that could take long to match.
        Exception: whatever peft raises for a configuration that it cannot read.
    """
    from peft import LoraConfig

    config = LoraConfig.from_pretrained(str(folder))
    targets = config.target_modules
    is_pattern = isinstance(targets, str) and targets.lower() != _ALL
    if is_pattern or isinstance(config.exclude_modules, str) or config.layers_pattern:
        layers = (name.removeprefix(_PREFIX).partition(".lora_") for name in weights)
        config.target_modules = {layer for layer, found, _ in layers if found}
        config.exclude_modules = config.layers_pattern = config.layers_to_transform = None
    repeated = 0
    for setting in ("modules_to_save", "rank_pattern", "alpha_pattern"):
        for pattern in getattr(config, setting) or ():
            repeated += "*" in pattern or "+" in pattern
            if not _QUICK.fullmatch(pattern) or repeated > _MOST:
                raise UserError(
                    f"{folder}: `{setting}` has the pattern {pattern[:100]!r}, which could take long to match: write "
                    "names of layers",
                    setting="adapter",
                )
    return config
