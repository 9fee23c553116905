"""Supervised fine-tuning: -log p of the assistant's tokens, averaged over those of a whole optimizer step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .models import TrainedModel, load_causal
from .rows import Example, sft_rows
from .run import Method, run_method
from .settings import SFTSettings

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from datasets import Dataset


def train_sft(
    settings: SFTSettings,
    *,
    train_rows: Sequence[Example] | None = None,
    eval_rows: Sequence[Example] | None = None,
    callbacks: Sequence[TrainerCallback] = (),
) -> dict[str, Any]:
    """Imitate conversations, and return the summary of the run; see `run_method`.

    Args:
        settings: of the run.
        train_rows: examples with `messages`, and `tools` where they have any; None reads `settings.dataset`.
        eval_rows: held-out examples; None holds `settings.eval_fraction` of the others out.
        callbacks: further callbacks for the trainer of transformers.

    Raises:
        UserError: a setting cannot work, or the output folder holds something else.
    """
    return run_method(SFT, settings, train_rows, eval_rows, callbacks)


def _trainer(
    settings: SFTSettings, loaded: TrainedModel, arguments: dict[str, Any], train: Dataset, measured: Dataset
) -> Any:
    """The rows bring their labels, so TRL neither renders nor masks anything."""
    from trl import SFTConfig, SFTTrainer

    return SFTTrainer(
        model=loaded.model,
        args=SFTConfig(
            **arguments,
            max_length=settings.max_length,
            packing=settings.packing,
            packing_strategy="bfd",
            eval_packing=False,
        ),
        train_dataset=train,
        eval_dataset=measured,
        processing_class=loaded.tokenizer,
        peft_config=loaded.new_adapter,
    )


SFT: Method[SFTSettings] = Method(
    name="sft",
    form="sft",
    tokenise=lambda renderer, examples, settings: sft_rows(renderer, examples, settings.max_length),
    load=load_causal,
    trainer=_trainer,
)
