"""Kahneman-Tversky optimization (Ethayarajh et al. 2024, equation 8), on single answers that are good or bad:

    w (1 - sigma(±beta (log(pi(y|x) / pi_0(y|x)) - z_0)))    with + for good answers, - for bad ones

The reference point z_0 estimates the KL divergence from the reference pi_0 by answers to other prompts of the batch.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from ..gateway import ChatRenderer
from .method import Callbacks, Method, Rows, TrlTrainer, on_token_ids
from .models import load_causal
from .rows import Example, TokenRows, unpaired_rows
from .run import run_method
from .settings import KTOSettings


def train_kto(
    settings: KTOSettings, *, train_rows: Rows = None, eval_rows: Rows = None, callbacks: Callbacks = ()
) -> dict[str, Any]:
    """Raise good answers and lower bad ones, and return the summary of the run. Rows have `prompt`, `completion` and
    `label` (true for good); arguments and errors are those of `run_method`."""
    return run_method(KTO, settings, train_rows, eval_rows, callbacks)


def batched_rows(renderer: ChatRenderer, examples: Sequence[Example], settings: KTOSettings) -> TokenRows:
    """Return the rows in the order of their batches, each with the answer of its neighbour in the batch.

    TRL takes the rows in order, so good and bad answers are mixed here.
    """
    found = unpaired_rows(renderer, examples, settings.max_length)
    random.Random(f"kto/{settings.seed}").shuffle(found.rows)
    for start in range(0, len(found.rows), settings.batch_size):
        batch = found.rows[start : start + settings.batch_size]
        for row, neighbour in zip(batch, [batch[-1], *batch[:-1]], strict=True):
            row["KL_completion_ids"] = neighbour["completion_ids"]
    return found


def _trainer(settings: KTOSettings) -> TrlTrainer:
    from trl import KTOConfig, KTOTrainer

    options = {
        "max_length": settings.max_length,
        "beta": settings.beta,
        "desirable_weight": settings.desirable_weight,
        "undesirable_weight": settings.undesirable_weight,
    }
    return TrlTrainer(on_token_ids(KTOTrainer), KTOConfig, options)


KTO: Method[KTOSettings] = Method(
    name="kto", form="unpaired", tokenise=batched_rows, load=load_causal, trainer=_trainer
)
