"""The math agent's conversations as training examples, for `--dataset mini_agentic_rl.agents.math_examples:calculator`.

What is imitated is exactly what the agent then does: its system prompt, one calculator call, its result, the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..datasets import ArithmeticDataset, DatasetError
from ..datasets.rows import check_split
from .math_protocol import TOOLS, demonstration, opening

DEFAULT_SIZE = 1000
LEVELS = (1, 2)


def calculator(
    form: str, split: str = "train", max_samples: int | None = None, seed: int = 0, levels: Sequence[int] = LEVELS
) -> list[dict[str, Any]]:
    """Examples of the form `sft` or `rl` (see `datasets.load_examples`), with the agent's `tools`.

    Raises:
        DatasetError: another form, or an unknown split or level.
    """
    if form not in ("sft", "rl"):
        raise DatasetError(f"--dataset calculator has the forms sft and rl, not {form}")
    rows = ArithmeticDataset(check_split(split), DEFAULT_SIZE if max_samples is None else max_samples, seed, levels)
    if form == "sft":
        return [{"messages": demonstration(row), "tools": TOOLS} for row in rows]
    return [{**row, "prompt": opening(row), "ground_truth": row["answer"], "tools": TOOLS} for row in rows]
