"""Supervised fine-tuning: -log p of the assistant's tokens, averaged over those of a whole optimizer step."""

from __future__ import annotations

from typing import Any

from .method import Callbacks, Method, Rows, TrlTrainer
from .models import load_causal
from .rows import sft_rows
from .run import run_method
from .settings import SFTSettings


def train_sft(
    settings: SFTSettings, *, train_rows: Rows = None, eval_rows: Rows = None, callbacks: Callbacks = ()
) -> dict[str, Any]:
    """Imitate conversations, and return the summary of the run. Rows have `messages`, and `tools` where there are any;
    arguments and errors are those of `run_method`."""
    return run_method(SFT, settings, train_rows, eval_rows, callbacks)


def _trainer(settings: SFTSettings) -> TrlTrainer:
    from trl import SFTConfig, SFTTrainer

    # the rows bring their labels, so TRL neither renders nor masks anything
    packing = {"packing": settings.packing, "packing_strategy": "bfd", "eval_packing": False}
    return TrlTrainer(SFTTrainer, SFTConfig, {"max_length": settings.max_length, **packing})


SFT: Method[SFTSettings] = Method(
    name="sft",
    form="sft",
    tokenise=lambda renderer, examples, settings: sft_rows(renderer, examples, settings.max_length),
    load=load_causal,
    trainer=_trainer,
)
