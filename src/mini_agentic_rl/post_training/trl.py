"""DPO, KTO, ORPO and reward models, each a trainer of TRL on rows of token ids.

Examples are passed as `train_rows` and `eval_rows`, or read from `settings.dataset`. Every `train_…` function returns
the summary of the run; its errors are those of `PostTraining.train`, and a `MissingPackageError` without TRL. TRL
reports to no service and shows no progress bars.
"""

from __future__ import annotations

import importlib.util
import random
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic

import torch
from peft import PeftModel
from transformers import EarlyStoppingCallback, PrinterCallback, ProgressCallback, TrainerCallback, set_seed
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from datasets import Dataset

from ..datasets import Form
from ..errors import MissingPackageError, UserError
from ..files import give_usual_modes
from ..gateway import ChatRenderer
from ..metrics import EVAL
from ..policy import ThreadCount, count_parameters, refuse_unknown_token, resolve_device, resolve_dtype
from ..processes import deferred_interrupt
from ..trainer import accuracy_row
from .models import load_for_training
from .rows import IGNORED, Example, TokenRows, preference_rows, unpaired_rows
from .run import PostTraining, Rows, S, damaged_checkpoint
from .settings import DPOSettings, KTOSettings, ORPOSettings, RewardModelSettings


def train_dpo(settings: DPOSettings, *, train_rows: Rows = None, eval_rows: Rows = None) -> dict[str, Any]:
    """Direct preference optimization (Rafailov et al. 2023, equation 7), on pairs of answers to one prompt:

        -log sigma(beta log(pi(y_w|x) / pi_0(y_w|x)) - beta log(pi(y_l|x) / pi_0(y_l|x)))

    The reference pi_0 is the model at the start of the run: the base with the new adapter off, or a frozen copy of the
    adapter that is trained. Rows have `prompt`, `chosen` and `rejected`.
    """
    return _DPO(settings).train(train_rows, eval_rows)


def train_kto(settings: KTOSettings, *, train_rows: Rows = None, eval_rows: Rows = None) -> dict[str, Any]:
    """Kahneman-Tversky optimization (Ethayarajh et al. 2024, equation 8), on single answers that are good or bad:

        w (1 - sigma(±beta (log(pi(y|x) / pi_0(y|x)) - z_0)))    with + for good answers, - for bad ones

    The reference point z_0 estimates the KL divergence from the reference pi_0 by answers to other prompts of the
    batch. Rows have `prompt`, `completion` and `label` (true for good).
    """
    return _KTO(settings).train(train_rows, eval_rows)


def train_orpo(settings: ORPOSettings, *, train_rows: Rows = None, eval_rows: Rows = None) -> dict[str, Any]:
    """Odds ratio preference optimization (Hong et al. 2024, equations 6 and 7), on pairs, without a reference model:

        -log p(y_w|x) - lambda log sigma(log(odds(y_w|x) / odds(y_l|x)))    with odds(y|x) = p(y|x) / (1 - p(y|x))

    where log p(y|x) is the mean over the tokens of the answer. Unlike TRL's own loss, it does not imitate prompts. Rows
    have `prompt`, `chosen` and `rejected`.
    """
    return _ORPO(settings).train(train_rows, eval_rows)


def train_reward_model(
    settings: RewardModelSettings, *, train_rows: Rows = None, eval_rows: Rows = None
) -> dict[str, Any]:
    """Reward models (Bradley and Terry 1952; Ouyang et al. 2022, equation 1), which score an answer to a prompt.

        -log sigma(r(x, y_w) - r(x, y_l)) + c (r(x, y_w) + r(x, y_l))²

    The reward is a linear function of the last hidden state at the token that ends the answer. Rows have `prompt`,
    `chosen` and `rejected`. The summary's `pair_accuracy` counts the held-out pairs whose chosen answer has the higher
    reward. `load_reward_model` loads the folder of the run.
    """
    return _RewardModel(settings).train(train_rows, eval_rows)


class TrlTraining(PostTraining[S], Generic[S]):
    """A run of a trainer of TRL on rows of token ids; by default on pairs of answers to a prompt."""

    form: ClassVar[Form] = "preference"
    packages = (*PostTraining.packages, "trl")

    def __init__(self, settings: S) -> None:
        super().__init__(settings)
        if importlib.util.find_spec("trl") is None:
            raise MissingPackageError("training on preferences", "trl", extra="trl")

    def tokenise(self, renderer: ChatRenderer, examples: Sequence[Example]) -> TokenRows:
        return preference_rows(renderer, examples, self.settings.max_length)

    @abstractmethod
    def trainer(self) -> tuple[Any, Any, Mapping[str, Any]]:
        """Return a trainer class of TRL, the class of its configuration, and further arguments of the configuration."""

    def load(self) -> None:
        settings = self.settings
        model, tokenizer, new_adapter = load_for_training(settings)
        rows = (*self.tokens.rows, *self.evaluated)
        largest = max(max(ids, default=0) for row in rows for name, ids in row.items() if name.endswith("_ids"))
        refuse_unknown_token(largest, model.get_input_embeddings().num_embeddings)
        trainer_class, configuration, options = self.trainer()
        set_seed(settings.seed)  # TRL 1.14 draws a new adapter before it sets the seed
        self._trainer = trainer_class(
            model=model,
            args=configuration(**{**self._arguments(), **options}),
            train_dataset=Dataset.from_list(self.tokens.rows),
            eval_dataset=Dataset.from_list(self.evaluated),
            processing_class=tokenizer,
            peft_config=new_adapter,
        )
        # Without the empty model cards that it and its adapter write with every checkpoint.
        self._trainer.create_model_card = lambda *_, **__: None
        if isinstance(self._trainer.model, PeftModel):
            self._trainer.model.create_or_update_model_card = lambda *_, **__: None
        self.parameters = count_parameters(self._trainer.model)
        for default in (PrinterCallback, ProgressCallback):
            self._trainer.remove_callback(default)
        self._progress = TrainingProgress(self)
        self._trainer.add_callback(self._progress)

    def _arguments(self) -> dict[str, Any]:
        """Return the arguments that all of TRL's configurations share."""
        settings = self.settings
        device = resolve_device(settings.device)
        dtype = resolve_dtype(settings.dtype, device)
        mixed = device.type == "cuda" or not settings.use_lora  # frozen weights are in the device's dtype already
        stops_early = settings.early_stopping_patience is not None
        checkpoint_every = settings.eval_every if stops_early else settings.checkpoint_every
        eval_strategy = "epoch" if settings.eval_every is None else "steps"
        same_names = {"gradient_accumulation_steps", "gradient_checkpointing", "learning_rate", "logging_steps", "seed"}
        return {
            **settings.model_dump(include={*same_names, "warmup_steps", "weight_decay"}),
            "output_dir": str(self.folder.checkpoints_path),
            "num_train_epochs": settings.num_epochs,
            "max_steps": -1 if settings.max_steps is None else settings.max_steps,
            "per_device_train_batch_size": settings.batch_size,
            "per_device_eval_batch_size": settings.batch_size,
            "lr_scheduler_type": settings.lr_schedule,
            "bf16": mixed and dtype == torch.bfloat16,
            "fp16": mixed and dtype == torch.float16,
            "use_cpu": device.type == "cpu",
            "dataloader_pin_memory": device.type == "cuda",
            "eval_strategy": eval_strategy if self.has_held_out else "no",
            "eval_steps": settings.eval_every,
            "save_strategy": "epoch" if checkpoint_every is None else "steps",
            "save_steps": checkpoint_every or 1,
            "load_best_model_at_end": stops_early,
            "metric_for_best_model": "eval_loss" if stops_early else None,
            "logging_first_step": True,
            "report_to": "none",
            "disable_tqdm": True,
        }

    def evaluate(self, phase: str) -> dict[str, float]:
        self.run.logger.phase(phase, len(self._trainer.get_eval_dataloader()))
        return _held_out_metrics(self._trainer.evaluate())

    def take_steps(self) -> None:
        trainer, checkpoint, patience = self._trainer, self.run.checkpoint, self.settings.early_stopping_patience
        if patience is not None:
            trainer.add_callback(EarlyStoppingCallback(patience))
        with deferred_interrupt(self._progress.stop):
            try:
                trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint[1]))
            except Exception as error:  # of pickles, archives and tensors, while a checkpoint is read
                if checkpoint is None or self._progress.has_begun or isinstance(error, UserError):
                    raise
                raise damaged_checkpoint(checkpoint[1], error) from error
        self.step, self.epochs = trainer.state.global_step, float(trainer.state.epoch)
        evaluations = [row for row in trainer.state.log_history if row["step"] == self.step and "eval_loss" in row]
        trained_here = checkpoint is None or checkpoint[0] != self.step
        if evaluations and trained_here and patience is None:  # else of other weights
            self.last_evaluation = _held_out_metrics(evaluations[-1])

    def save_model(self, path: Path) -> None:
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        adapter_alone = {"selected_adapters": ["default"]} if isinstance(model, PeftModel) else {}  # without DPO's copy
        model.save_pretrained(path, **adapter_alone)
        self._trainer.processing_class.save_pretrained(path)


class _DPO(TrlTraining[DPOSettings]):
    name = "dpo"

    def trainer(self) -> tuple[Any, Any, Mapping[str, Any]]:
        from trl import DPOConfig, DPOTrainer

        settings = self.settings
        options = {"max_length": settings.max_length, "beta": settings.beta, "loss_type": [settings.loss_type]}
        return _on_token_ids(DPOTrainer), DPOConfig, options


class _KTO(TrlTraining[KTOSettings]):
    name = "kto"
    form = "unpaired"

    def tokenise(self, renderer: ChatRenderer, examples: Sequence[Example]) -> TokenRows:
        """Return shuffled rows, each with the answer of another row of its batch for the estimate of the KL divergence.

        TRL reads the rows in order, so good and bad answers are mixed here.
        """
        tokens = unpaired_rows(renderer, examples, self.settings.max_length)
        random.Random(f"kto/{self.settings.seed}").shuffle(tokens.rows)
        for start in range(0, len(tokens.rows), self.settings.batch_size):
            batch = tokens.rows[start : start + self.settings.batch_size]
            for row, other in zip(batch, [batch[-1], *batch[:-1]], strict=True):
                row["KL_completion_ids"] = other["completion_ids"]
        return tokens

    def trainer(self) -> tuple[Any, Any, Mapping[str, Any]]:
        from trl import KTOConfig, KTOTrainer

        options = self.settings.model_dump(include={"max_length", "beta", "desirable_weight", "undesirable_weight"})
        return _on_token_ids(KTOTrainer), KTOConfig, options


class _ORPO(TrlTraining[ORPOSettings]):
    name = "orpo"

    def trainer(self) -> tuple[Any, Any, Mapping[str, Any]]:
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

        settings = self.settings
        options = {"max_length": settings.max_length, "beta": settings.beta, "remove_unused_columns": False}
        return AnswersOnlyTrainer, ORPOConfig, options


class _RewardModel(TrlTraining[RewardModelSettings]):
    name = "reward"

    def tokenise(self, renderer: ChatRenderer, examples: Sequence[Example]) -> TokenRows:
        """Return `chosen_ids` and `rejected_ids`: prompt, answer, and the token that ends it."""
        tokens = super().tokenise(renderer, examples)
        tokens.rows = [
            {column: row["prompt_ids"] + row[column] for column in ("chosen_ids", "rejected_ids")}
            for row in tokens.rows
        ]
        return tokens

    def trainer(self) -> tuple[Any, Any, Mapping[str, Any]]:
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
            "center_rewards_coefficient": self.settings.center_rewards or None,
        }
        return PairCountingTrainer, RewardConfig, options

    def result(self) -> dict[str, Any]:
        return {"pair_accuracy": accuracy_row("pairs", self._trainer.correct, len(self.evaluated))}


def _on_token_ids(trainer: Any) -> Any:
    """Return the trainer's class without TRL's data preparation: the rows are token ids already."""

    class OnTokenIds(trainer):  # type: ignore[misc]  # TRL has no types here
        def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
            return dataset

    return OnTokenIds


class TrainingProgress(TrainerCallback):  # type: ignore[misc]  # transformers has no types here
    """Logs progress and metrics, saves epochs, and stops at an interruption."""

    def __init__(self, training: TrlTraining[Any]) -> None:
        self._training = training
        self._logger = training.run.logger
        self.stop = threading.Event()
        """Once it is set, the training stops after its step, with a checkpoint."""
        self.has_begun = False
        """True once a training step has begun, and so the checkpoint that it resumes from was read."""
        self._is_training = False
        self._threads = ThreadCount()
        self._last_log = (0.0, 0.0)
        """Time of the last row of metrics, and the epochs done by then."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._is_training = True
        self._last_log = (time.perf_counter(), float(state.epoch or 0.0))
        self._logger.phase("training", state.max_steps - state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._is_training = False

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.has_begun = True
        self._threads.adapt()

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._threads.adapt()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._logger.advance()
        control.should_log |= state.global_step >= state.max_steps  # log the last step, whatever `logging_steps` is
        if self.stop.is_set():
            self._logger.note("interrupted: writing a checkpoint")
            control.should_save = control.should_training_stop = True
            control.should_evaluate = False

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._threads.adapt()
        if not self._is_training:  # before and after training, evaluation is a phase of its own
            self._logger.advance()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        metrics = _trl_metrics(logs or {})
        if not self._is_training or not metrics:
            return
        if "loss" in metrics:
            now, epochs = time.perf_counter(), float(state.epoch)
            seconds, done = now - self._last_log[0], epochs - self._last_log[1]
            metrics["tokens_per_second"] = self._training.tokens.tokens * done / seconds if seconds > 0 else 0.0
            self._last_log = (now, epochs)
        self._logger.log(metrics, step=state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            give_usual_modes(Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
            self._training.folder.drop_older_checkpoints(state.best_model_checkpoint)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.stop.is_set():  # its checkpoint is written, and an evaluation may take longer than there is time
            control.should_evaluate = control.should_save = False
        epoch = round(state.epoch)
        if state.is_world_process_zero and epoch > 0 and abs(state.epoch - epoch) < 1e-6:
            self._training.folder.save_epoch(epoch, self._training.save_model)


_FIRST = "reward/margin"
"""Logged first: the metric to watch where pairs are trained."""
_NAMES = {
    "grad_norm": "gradient_norm",
    "logps/chosen": "logprob/chosen",
    "logps/rejected": "logprob/rejected",
    "margin": "reward/margin",
    "max_reward": "reward/max",
    "mean_reward": "reward/mean",
    "mean_token_accuracy": "accuracy/tokens",
    "min_reward": "reward/min",
    "rewards/accuracies": "accuracy",
    "rewards/chosen": "reward/chosen",
    "rewards/margins": "reward/margin",
    "rewards/rejected": "reward/rejected",
}
_LEFT_OUT = ("epoch", "model_preparation_time", "num_tokens", "runtime", "total_flos")


def _trl_metrics(logs: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of one row of TRL's log under our names, those of an evaluation as `…/eval`; no counters."""
    metrics: dict[str, float] = {}
    for name, value in logs.items():
        plain = name.removeprefix("eval_")
        if plain in _LEFT_OUT or plain.endswith("_per_second") or name.startswith("train_"):
            continue
        metrics[_NAMES.get(plain, plain) + (EVAL if name.startswith("eval_") else "")] = float(value)
    return dict(sorted(metrics.items(), key=lambda item: not item[0].startswith(_FIRST)))


def _held_out_metrics(logs: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of one evaluation: `loss`, `accuracy`, …"""
    return {name.removesuffix(EVAL): value for name, value in _trl_metrics(logs).items() if name.endswith(EVAL)}
