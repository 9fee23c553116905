"""DPO, KTO, ORPO and reward models, each a trainer of TRL on rows of token ids.

Examples are passed as `train_rows` and `eval_rows`, or read from `settings.dataset`. Every `train_…` function returns
the summary of the run; further arguments and errors are those of `run_method`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from ..gateway import ChatRenderer
from ..trainer import accuracy_row
from .models import load_for_training
from .rows import IGNORED, Example, TokenRows, preference_rows, unpaired_rows
from .run import Rows
from .settings import DPOSettings, KTOSettings, ORPOSettings, RewardModelSettings
from .trl_training import Method, TrlParts, run_method


def train_dpo(settings: DPOSettings, *, train_rows: Rows = None, eval_rows: Rows = None) -> dict[str, Any]:
    """Direct preference optimization (Rafailov et al. 2023, equation 7), on pairs of answers to one prompt:

        -log sigma(beta log(pi(y_w|x) / pi_0(y_w|x)) - beta log(pi(y_l|x) / pi_0(y_l|x)))

    The reference pi_0 is the model at the start of the run: the base with the new adapter off, or a frozen copy of the
    adapter that is trained. Rows have `prompt`, `chosen` and `rejected`.
    """
    return run_method(DPO, settings, train_rows, eval_rows)


def _pair_rows(
    renderer: ChatRenderer, examples: Sequence[Example], settings: DPOSettings | ORPOSettings | RewardModelSettings
) -> TokenRows:
    return preference_rows(renderer, examples, settings.max_length)


def _dpo_parts(settings: DPOSettings) -> TrlParts:
    from trl import DPOConfig, DPOTrainer

    options = {"max_length": settings.max_length, "beta": settings.beta, "loss_type": [settings.loss_type]}
    return _on_token_ids(DPOTrainer), DPOConfig, options


DPO: Method[DPOSettings] = Method("dpo", "preference", _pair_rows, _dpo_parts)


def train_kto(settings: KTOSettings, *, train_rows: Rows = None, eval_rows: Rows = None) -> dict[str, Any]:
    """Kahneman-Tversky optimization (Ethayarajh et al. 2024, equation 8), on single answers that are good or bad:

        w (1 - sigma(±beta (log(pi(y|x) / pi_0(y|x)) - z_0)))    with + for good answers, - for bad ones

    The reference point z_0 estimates the KL divergence from the reference pi_0 by answers to other prompts of the
    batch. Rows have `prompt`, `completion` and `label` (true for good).
    """
    return run_method(KTO, settings, train_rows, eval_rows)


def batched_rows(renderer: ChatRenderer, examples: Sequence[Example], settings: KTOSettings) -> TokenRows:
    """Return shuffled rows, each with the answer of another row of its batch for the estimate of the KL divergence.

    TRL reads the rows in order, so good and bad answers are mixed here.
    """
    tokens = unpaired_rows(renderer, examples, settings.max_length)
    random.Random(f"kto/{settings.seed}").shuffle(tokens.rows)
    for start in range(0, len(tokens.rows), settings.batch_size):
        batch = tokens.rows[start : start + settings.batch_size]
        for row, other in zip(batch, [batch[-1], *batch[:-1]], strict=True):
            row["KL_completion_ids"] = other["completion_ids"]
    return tokens


def _kto_parts(settings: KTOSettings) -> TrlParts:
    from trl import KTOConfig, KTOTrainer

    names = ("max_length", "beta", "desirable_weight", "undesirable_weight")
    return _on_token_ids(KTOTrainer), KTOConfig, {name: getattr(settings, name) for name in names}


KTO: Method[KTOSettings] = Method("kto", "unpaired", batched_rows, _kto_parts)


def train_orpo(settings: ORPOSettings, *, train_rows: Rows = None, eval_rows: Rows = None) -> dict[str, Any]:
    """Odds ratio preference optimization (Hong et al. 2024, equations 6 and 7), on pairs, without a reference model:

        -log p(y_w|x) - lambda log sigma(log(odds(y_w|x) / odds(y_l|x)))    with odds(y|x) = p(y|x) / (1 - p(y|x))

    where log p(y|x) is the mean over the tokens of the answer. Unlike TRL's own loss, it does not imitate prompts. Rows
    have `prompt`, `chosen` and `rejected`.
    """
    return run_method(ORPO, settings, train_rows, eval_rows)


def _orpo_parts(settings: ORPOSettings) -> TrlParts:
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    class AnswersOnlyTrainer(ORPOTrainer):  # type: ignore[misc]  # TRL has no types here
        def tokenize_row(self, feature: dict[str, Any], model: Any = None) -> dict[str, Any]:
            """Return the row, which holds token ids already, in TRL's columns."""
            prompt = feature["prompt_ids"]
            columns = {"prompt_input_ids": prompt, "prompt_attention_mask": [1] * len(prompt)}
            for column in ("chosen", "rejected"):
                answer = feature[f"{column}_ids"]
                columns[f"{column}_input_ids"] = prompt + answer
                columns[f"{column}_attention_mask"] = [1] * (len(prompt) + len(answer))
                columns[f"{column}_labels"] = [IGNORED] * len(prompt) + answer
            return columns

        def concatenated_forward(self, model: Any, batch: dict[str, Any]) -> tuple[Any, ...]:
            """Return mean log-probabilities and logits of chosen and rejected answers, and the imitation loss."""
            both = self.concatenated_inputs(batch, padding_value=self.padding_value, device=self.accelerator.device)
            logits_BTV = model(
                both["concatenated_input_ids"], attention_mask=both["concatenated_attention_mask"], use_cache=False
            ).logits
            labels_BT = both["concatenated_labels"]
            logprobs_B = self.get_batch_logps(logits_BTV, labels_BT, average_log_prob=True)
            chosen = len(batch["chosen_labels"])
            lengths_B = (labels_BT[:chosen, 1:] != IGNORED).sum(-1)
            imitation = -(logprobs_B[:chosen] * lengths_B).sum() / lengths_B.sum()
            return (
                logprobs_B[:chosen], logprobs_B[chosen:],
                logits_BTV[:chosen, :-1], logits_BTV[chosen:, :-1],
                imitation,
            )  # fmt: skip

    options = {"max_length": settings.max_length, "beta": settings.beta, "remove_unused_columns": False}
    return AnswersOnlyTrainer, ORPOConfig, options


ORPO: Method[ORPOSettings] = Method("orpo", "preference", _pair_rows, _orpo_parts)


def train_reward_model(
    settings: RewardModelSettings, *, train_rows: Rows = None, eval_rows: Rows = None
) -> dict[str, Any]:
    """Reward models (Bradley and Terry 1952; Ouyang et al. 2022, equation 1), which score an answer to a prompt.

        -log sigma(r(x, y_w) - r(x, y_l)) + c (r(x, y_w) + r(x, y_l))²

    The reward is a linear function of the last hidden state at the token that ends the answer. Rows have `prompt`,
    `chosen` and `rejected`. The summary's `pair_accuracy` counts the held-out pairs whose chosen answer has the higher
    reward. `load_reward_model` loads the folder of the run.
    """
    return run_method(REWARD, settings, train_rows, eval_rows)


def pair_rows(renderer: ChatRenderer, examples: Sequence[Example], settings: RewardModelSettings) -> TokenRows:
    """Return `chosen_ids` and `rejected_ids`: prompt, answer, and the token that ends it.

    Raises:
        UserError: an example cannot be rendered.
    """
    tokens = _pair_rows(renderer, examples, settings)
    tokens.rows = [
        {column: row["prompt_ids"] + row[column] for column in ("chosen_ids", "rejected_ids")} for row in tokens.rows
    ]
    return tokens


def _reward_parts(settings: RewardModelSettings) -> TrlParts:
    from trl import RewardConfig, RewardTrainer

    class PairCountingTrainer(RewardTrainer):  # type: ignore[misc]  # TRL has no types here
        """Counts the pairs that an evaluation ranks correctly; TRL averages over batches of different sizes."""

        correct = 0

        def evaluate(self, *arguments: Any, **options: Any) -> dict[str, float]:
            self.correct = 0
            metrics: dict[str, float] = super().evaluate(*arguments, **options)
            return metrics

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
    return PairCountingTrainer, RewardConfig, options


REWARD: Method[RewardModelSettings] = Method(
    "reward",
    "preference",
    pair_rows,
    _reward_parts,
    load=load_for_training,
    result=lambda trainer, pairs: {"pair_accuracy": accuracy_row("pairs", trainer.correct, pairs)},
)


def _on_token_ids(trainer: Any) -> Any:
    """Return the trainer's class without TRL's data preparation: the rows are token ids already."""

    class OnTokenIds(trainer):  # type: ignore[misc]  # TRL has no types here
        def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
            return dataset

    return OnTokenIds
