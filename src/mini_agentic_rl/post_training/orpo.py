"""Odds ratio preference optimization (Hong et al. 2024, equations 6 and 7), on pairs, without a reference model:

    -log p(y_w|x) - lambda log sigma(log(odds(y_w|x) / odds(y_l|x)))    with odds(y|x) = p(y|x) / (1 - p(y|x))

where log p(y|x) is the mean over the tokens of the answer. Prompts are not imitated, unlike in TRL's own loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .models import TrainedModel, load_causal
from .rows import IGNORED, Example, preference_rows
from .run import Method, run_method
from .settings import ORPOSettings

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from datasets import Dataset


def train_orpo(
    settings: ORPOSettings,
    *,
    train_rows: Sequence[Example] | None = None,
    eval_rows: Sequence[Example] | None = None,
    callbacks: Sequence[TrainerCallback] = (),
) -> dict[str, Any]:
    """Imitate chosen answers and prefer them to rejected ones, and return the summary of the run; see `run_method`.

    Args:
        settings: of the run.
        train_rows: examples with `prompt`, `chosen` and `rejected`; None reads `settings.dataset`.
        eval_rows: held-out examples; None holds `settings.eval_fraction` of the others out.
        callbacks: further callbacks for the trainer of transformers.

    Raises:
        UserError: a setting cannot work, or the output folder holds something else.
    """
    return run_method(ORPO, settings, train_rows, eval_rows, callbacks)


def _trainer(
    settings: ORPOSettings, loaded: TrainedModel, arguments: dict[str, Any], train: Dataset, measured: Dataset
) -> Any:
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    class Trainer(ORPOTrainer):  # type: ignore[misc]  # TRL has no types here
        def tokenize_row(self, feature: dict[str, Any], model: Any = None) -> dict[str, Any]:
            """The row in TRL's columns: these are token ids already."""
            prompt = feature["prompt_ids"]
            columns = {"prompt_input_ids": prompt, "prompt_attention_mask": [1] * len(prompt)}
            for side in ("chosen", "rejected"):
                answer = feature[f"{side}_ids"]
                columns[f"{side}_input_ids"] = prompt + answer
                columns[f"{side}_attention_mask"] = [1] * (len(prompt) + len(answer))
                columns[f"{side}_labels"] = [IGNORED] * len(prompt) + answer
            return columns

        def concatenated_forward(self, model: Any, batch: dict[str, Any]) -> tuple[Any, ...]:
            """Mean log-probabilities and logits of the chosen and the rejected answers, and the loss of imitation."""
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

    return Trainer(
        model=loaded.model,
        args=ORPOConfig(**arguments, max_length=settings.max_length, beta=settings.beta, remove_unused_columns=False),
        train_dataset=train,
        eval_dataset=measured,
        processing_class=loaded.tokenizer,
        peft_config=loaded.new_adapter,
    )


ORPO: Method[ORPOSettings] = Method(
    name="orpo",
    form="preference",
    tokenise=lambda renderer, examples, settings: preference_rows(renderer, examples, settings.max_length),
    load=load_causal,
    trainer=_trainer,
)
