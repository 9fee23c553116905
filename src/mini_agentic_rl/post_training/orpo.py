"""Odds ratio preference optimization (Hong et al. 2024, equations 6 and 7), on pairs, without a reference model:

    -log p(y_w|x) - lambda log sigma(log(odds(y_w|x) / odds(y_l|x)))    with odds(y|x) = p(y|x) / (1 - p(y|x))

where log p(y|x) is the mean over the tokens of the answer. Prompts are not imitated, unlike in TRL's own loss.
"""

from __future__ import annotations

from typing import Any

from .method import Callbacks, Method, Rows, TrlTrainer
from .models import load_causal
from .rows import IGNORED, preference_rows
from .run import run_method
from .settings import ORPOSettings


def train_orpo(
    settings: ORPOSettings, *, train_rows: Rows = None, eval_rows: Rows = None, callbacks: Callbacks = ()
) -> dict[str, Any]:
    """Imitate chosen answers and prefer them to rejected ones, and return the summary of the run. Rows have `prompt`,
    `chosen` and `rejected`; arguments and errors are those of `run_method`."""
    return run_method(ORPO, settings, train_rows, eval_rows, callbacks)


def _trainer(settings: ORPOSettings) -> TrlTrainer:
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    class AnswersOnlyTrainer(ORPOTrainer):  # type: ignore[misc]  # TRL has no types here
        def tokenize_row(self, feature: dict[str, Any], model: Any = None) -> dict[str, Any]:
            """Return the row in TRL's columns: these are token ids already."""
            prompt = feature["prompt_ids"]
            columns = {"prompt_input_ids": prompt, "prompt_attention_mask": [1] * len(prompt)}
            for column in ("chosen", "rejected"):
                answer = feature[f"{column}_ids"]
                columns[f"{column}_input_ids"] = prompt + answer
                columns[f"{column}_attention_mask"] = [1] * (len(prompt) + len(answer))
                columns[f"{column}_labels"] = [IGNORED] * len(prompt) + answer
            return columns

        def concatenated_forward(self, model: Any, batch: dict[str, Any]) -> tuple[Any, ...]:
            """Return mean log-probabilities and logits of chosen and rejected answers, and the loss of imitation."""
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
    return TrlTrainer(AnswersOnlyTrainer, ORPOConfig, options)


ORPO: Method[ORPOSettings] = Method(
    name="orpo",
    form="preference",
    tokenise=lambda renderer, examples, settings: preference_rows(renderer, examples, settings.max_length),
    load=load_causal,
    trainer=_trainer,
)
