"""Direct preference optimization (Rafailov et al. 2023, equation 7), on pairs of answers to one prompt:

    -log sigma(beta log(pi(y_w|x) / pi_0(y_w|x)) - beta log(pi(y_l|x) / pi_0(y_l|x)))

The reference pi_0 is the model that the run started from: the base with the new adapter off, or a frozen copy of the
adapter that is trained on.
"""

from __future__ import annotations

from typing import Any

from .method import Callbacks, Method, Rows, TrlTrainer, on_token_ids
from .models import load_causal
from .rows import preference_rows
from .run import run_method
from .settings import DPOSettings


def train_dpo(
    settings: DPOSettings, *, train_rows: Rows = None, eval_rows: Rows = None, callbacks: Callbacks = ()
) -> dict[str, Any]:
    """Prefer chosen answers to rejected ones, and return the summary of the run. Rows have `prompt`, `chosen` and
    `rejected`; arguments and errors are those of `run_method`."""
    return run_method(DPO, settings, train_rows, eval_rows, callbacks)


def _trainer(settings: DPOSettings) -> TrlTrainer:
    from trl import DPOConfig, DPOTrainer

    options = {"max_length": settings.max_length, "beta": settings.beta, "loss_type": [settings.loss_type]}
    return TrlTrainer(on_token_ids(DPOTrainer), DPOConfig, options)


DPO: Method[DPOSettings] = Method(
    name="dpo",
    form="preference",
    tokenise=lambda renderer, examples, settings: preference_rows(renderer, examples, settings.max_length),
    load=load_causal,
    trainer=_trainer,
)
