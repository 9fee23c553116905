"""Direct preference optimization (Rafailov et al. 2023, equation 7), on pairs of answers to one prompt:

    -log sigma(beta log(pi(y_w|x) / pi_0(y_w|x)) - beta log(pi(y_l|x) / pi_0(y_l|x)))

The reference pi_0 is the model that the run started from: the base with the new adapter off, or a frozen copy of the
adapter that is trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .models import TrainedModel, load_causal
from .rows import Example, preference_rows
from .run import Method, run_method
from .settings import DPOSettings

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from datasets import Dataset


def train_dpo(
    settings: DPOSettings,
    *,
    train_rows: Sequence[Example] | None = None,
    eval_rows: Sequence[Example] | None = None,
    callbacks: Sequence[TrainerCallback] = (),
) -> dict[str, Any]:
    """Prefer chosen answers to rejected ones, and return the summary of the run; see `run_method`.

    Args:
        settings: of the run.
        train_rows: examples with `prompt`, `chosen` and `rejected`; None reads `settings.dataset`.
        eval_rows: held-out examples; None holds `settings.eval_fraction` of the others out.
        callbacks: further callbacks for the trainer of transformers.

    Raises:
        UserError: a setting cannot work, or the output folder holds something else.
    """
    return run_method(DPO, settings, train_rows, eval_rows, callbacks)


def _trainer(
    settings: DPOSettings, loaded: TrainedModel, arguments: dict[str, Any], train: Dataset, measured: Dataset
) -> Any:
    from trl import DPOConfig, DPOTrainer

    class Trainer(DPOTrainer):  # type: ignore[misc]  # TRL has no types here
        def _prepare_dataset(self, dataset: Dataset, *_: Any, **__: Any) -> Dataset:
            return dataset  # these are token ids already

    return Trainer(
        model=loaded.model,
        args=DPOConfig(**arguments, max_length=settings.max_length, beta=settings.beta, loss_type=[settings.loss_type]),
        train_dataset=train,
        eval_dataset=measured,
        processing_class=loaded.tokenizer,
        peft_config=loaded.new_adapter,
    )


DPO: Method[DPOSettings] = Method(
    name="dpo",
    form="preference",
    tokenise=lambda renderer, examples, settings: preference_rows(renderer, examples, settings.max_length),
    load=load_causal,
    trainer=_trainer,
)
