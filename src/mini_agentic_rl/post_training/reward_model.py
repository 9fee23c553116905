"""Reward models (Bradley and Terry 1952; Ouyang et al. 2022, equation 1): a number for an answer to a prompt.

    -log sigma(r(x, y_w) - r(x, y_l)) + c (r(x, y_w) + r(x, y_l))²

The reward is a linear function of the last hidden state at the token that ends the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..gateway import ChatRenderer
from ..trainer import accuracy_row
from .method import Callbacks, Method, Rows, TrlTrainer
from .models import load_for_training
from .rows import Example, TokenRows, preference_rows
from .run import run_method
from .settings import RewardModelSettings


def train_reward_model(
    settings: RewardModelSettings, *, train_rows: Rows = None, eval_rows: Rows = None, callbacks: Callbacks = ()
) -> dict[str, Any]:
    """Learn to tell chosen answers from rejected ones, and return the summary of the run. Rows have `prompt`, `chosen`
    and `rejected`; arguments and errors are those of `run_method`.

    The summary's `pair_accuracy` counts the held-out pairs whose chosen answer has the higher reward.
    `load_reward_model` loads what the run leaves in its folder.
    """
    return run_method(REWARD, settings, train_rows, eval_rows, callbacks)


def pair_rows(renderer: ChatRenderer, examples: Sequence[Example], settings: RewardModelSettings) -> TokenRows:
    """Return `chosen_ids` and `rejected_ids`: prompt, answer, and the token that ends it.

    Raises:
        UserError: an example cannot be rendered.
    """
    found = preference_rows(renderer, examples, settings.max_length)
    found.rows = [
        {column: row["prompt_ids"] + row[column] for column in ("chosen_ids", "rejected_ids")} for row in found.rows
    ]
    return found


def _trainer(settings: RewardModelSettings) -> TrlTrainer:
    from trl import RewardConfig, RewardTrainer

    class PairCountingTrainer(RewardTrainer):  # type: ignore[misc]  # TRL has no types here
        """Count the pairs that an evaluation told right: TRL gives the mean over batches, the last of them small."""

        correct = 0

        def evaluate(self, *arguments: Any, **options: Any) -> dict[str, float]:
            self.correct = 0
            found: dict[str, float] = super().evaluate(*arguments, **options)
            return found

        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
            if not model.training:
                chosen_B, rejected_B = outputs.logits.squeeze(-1).chunk(2)
                self.correct += int(self.accelerator.gather_for_metrics((chosen_B > rejected_B).long()).sum())
            return (loss, outputs) if return_outputs else loss

    options = {
        "bf16": False,  # rewards keep the precision of the head
        "max_length": None,
        "center_rewards_coefficient": settings.center_rewards or None,
    }
    return TrlTrainer(PairCountingTrainer, RewardConfig, options)


REWARD: Method[RewardModelSettings] = Method(
    name="reward",
    form="preference",
    tokenise=pair_rows,
    load=load_for_training,
    trainer=_trainer,
    result=lambda trainer, pairs: {"pair_accuracy": accuracy_row("pairs", trainer.correct, pairs)},
)
