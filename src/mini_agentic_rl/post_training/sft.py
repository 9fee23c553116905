"""Supervised fine-tuning on the policy's learner, which reinforcement learning uses too.

    L = 1/N * sum over the N assistant tokens of an optimizer step of -log p(token | all before it)

The conversations of a forward-backward pass are inserted into one token tree: a system prompt that they share is
computed once, nothing is padded, and no conversation attends to another. A killed run continues from its last complete
checkpoint with the same order of examples, optimizer and random state. Started by `torchrun` or `accelerate launch`,
each process computes its share of every step, and the first one writes.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch
import torch.distributed as dist

from ..algorithm import derive_seed, negative_log_likelihood
from ..files import read_json, write_json
from ..gateway import ChatRenderer, load_tokenizer
from ..metrics import EVAL
from ..policy import (
    EMBEDDED_NAMES,
    Learner,
    LearnerSettings,
    LoraSettings,
    LossInputs,
    PolicyModel,
    RankGroup,
    count_parameters,
    load_model,
    load_weights,
    resolve_device,
    save_weights,
    write_state,
)
from ..processes import deferred_interrupt
from ..tokens import CompletionRecord, pack
from .models import refuse_weights
from .rows import TokenRows, conversation_tree, sft_rows
from .run import STATE_FILE, PostTraining, Rows, damaged_checkpoint
from .settings import SFTSettings

_OPTIMIZER: Final = "optimizer.pt"
_RANDOM: Final = "random.pt"

Row: TypeAlias = list[CompletionRecord]
"""The answers of a conversation."""


def train_sft(settings: SFTSettings, *, train_rows: Rows = None, eval_rows: Rows = None) -> dict[str, Any]:
    """Fine-tune a model on conversations, and return the summary of the run.

    Args:
        train_rows: conversations with `messages`, and optionally `tools`; None reads `settings.dataset`.
        eval_rows: held-out conversations; None holds out `settings.eval_fraction` of the others.

    Raises:
        UserError: a setting cannot work, or the output folder holds something else.
    """

    return _SupervisedFineTuning(settings).train(train_rows, eval_rows)


class _SupervisedFineTuning(PostTraining[SFTSettings]):
    """The model, its learner, and the state of the loop."""

    name = "sft"
    form = "sft"

    def tokenise(self, renderer: ChatRenderer, examples: Sequence[Mapping[str, Any]]) -> TokenRows:
        return sft_rows(renderer, examples, self.settings.max_length)

    def load(self) -> None:
        settings, processes = self.settings, self.processes
        self._rows: Sequence[Row] = self.tokens.rows
        self._batch = settings.batch_size
        self._tokenizer = load_tokenizer(settings.model)
        self.model = _load(settings)
        self._group: RankGroup | None = None
        if processes.num_processes > 1:
            all_ranks = dist.new_group()
            self._group = RankGroup(processes.process_index, processes.num_processes, self.model.device, all_ranks)
        self._rank, self._ranks = processes.process_index, processes.num_processes

        self._rows_per_step = settings.batch_size * settings.gradient_accumulation_steps * self._ranks
        self._steps_per_epoch = math.ceil(len(self._rows) / self._rows_per_step)
        self._total_steps = settings.max_steps or settings.num_epochs * self._steps_per_epoch
        self.learner = Learner(
            self.model,
            LearnerSettings(
                learning_rate=settings.learning_rate,
                weight_decay=settings.weight_decay,
                betas=(0.9, 0.999),
                warmup_steps=settings.warmup_steps,
                schedule=settings.lr_schedule,
                total_steps=self._total_steps,
                optimizer="adamw",
                checkpointing=settings.gradient_checkpointing,
            ),
            group=self._group,
        )
        self.parameters = count_parameters(self.model.base, self.learner.parameters)
        self._best: tuple[float, int] | None = None
        """Lowest held-out loss and its step, under early stopping."""
        self._evaluations_since_best = 0
        if self.run.checkpoint is not None:
            self._load_checkpoint(self.run.checkpoint[1])

    def take_steps(self) -> None:
        """Take the optimizer steps that are left, and end with the weights that are kept."""
        settings, logger = self.settings, self.run.logger
        logger.phase("training", self._total_steps - self.step)
        stop = threading.Event()
        losses: list[float] = []
        last_log, last_logged_step = time.perf_counter(), self.step
        stops_early = False
        with deferred_interrupt(stop):
            while self.step < self._total_steps and not stops_early and not stop.is_set():
                metrics = self._train_step()
                losses.append(metrics.pop("loss"))
                logger.advance()
                if self.step % settings.logging_steps == 0 or self.step in (1, self._total_steps):
                    now = time.perf_counter()
                    tokens = self.tokens.tokens * (self.step - last_logged_step) / self._steps_per_epoch
                    speed = {"tokens_per_second": tokens / max(now - last_log, 1e-9)}
                    logger.log({"loss": float(np.mean(losses)), **metrics, **speed}, step=self.step)
                    losses, last_log, last_logged_step = [], now, self.step
                if stop.is_set():
                    break
                if self._is_due(settings.eval_every) and self.has_held_out:
                    stops_early = self._evaluate_held_out()
                stopping = settings.early_stopping_patience is not None
                if self._is_due(settings.eval_every if stopping else settings.checkpoint_every):
                    self._save_checkpoint()
                if self.step % self._steps_per_epoch == 0 and self.processes.is_main_process:
                    self.folder.save_epoch(self.step // self._steps_per_epoch, self.save_model)
            if stop.is_set():  # also if the signal came during an evaluation or while an epoch was saved
                logger.note("interrupted: writing a checkpoint")
                self._save_checkpoint()
        self.epochs = self.step / self._steps_per_epoch
        if self._best is not None and self._best[1] != self.step:
            load_weights(self.model, self.folder.checkpoint_path(self._best[1]))
            self.last_evaluation = None

    def evaluate(self, phase: str) -> dict[str, float]:
        """Return `loss` and `entropy` on the evaluated conversations, in nats a token."""
        rows = self.evaluated
        batches = [rows[start : start + self._batch] for start in range(0, len(rows), self._batch)]
        if phase:
            self.run.logger.phase(phase, len(batches))
        terms = _trained_tokens(rows)
        sums = {"loss": 0.0, "entropy": 0.0}
        for batch in batches:
            self._add_pass(sums, batch[self._rank :: self._ranks], terms, gradient=False)
            if phase:
                self.run.logger.advance()
        return self._summed(sums)

    def save_model(self, path: Path) -> None:
        """Write the adapter or all weights, and the tokenizer, into a folder."""
        save_weights(self.model, path)
        self._tokenizer.save_pretrained(path)

    def _train_step(self) -> dict[str, float]:
        epoch, step = divmod(self.step, self._steps_per_epoch)
        rng = np.random.default_rng(derive_seed(self.settings.seed, "sft", epoch))
        order = rng.permutation(len(self._rows))[step * self._rows_per_step :][: self._rows_per_step]
        rows = [self._rows[index] for index in order]
        terms = _trained_tokens(rows)
        sums = {"loss": 0.0, "entropy": 0.0}
        share = rows[self._rank :: self._ranks]
        for start in range(0, len(share), self._batch):
            self._add_pass(sums, share[start : start + self._batch], terms, gradient=True)
        metrics = self._summed(sums)
        taken = self.learner.optim_step()
        self.step += 1
        self.last_evaluation = None
        return {**metrics, "gradient_norm": taken["grad_norm"], "learning_rate": taken["learning_rate"]}

    def _add_pass(self, sums: dict[str, float], rows: Sequence[Row], terms: int, *, gradient: bool) -> None:
        """Add the metrics of conversations to `sums`, and their gradients to the learner's; each token weighs
        1 / `terms`."""
        if not rows:
            return
        packed = pack([conversation_tree(rows)])
        inputs = LossInputs(torch.full((packed.term_count,), 1 / terms))
        metrics = self.learner.forward_backward(packed, negative_log_likelihood, inputs, gradient=gradient)
        for name in sums:
            sums[name] += metrics[name]

    def _summed(self, sums: dict[str, float]) -> dict[str, float]:
        """Return the sums over all ranks."""
        if self._group is None:
            return sums
        values = torch.tensor(list(sums.values()), device=self._group.device)
        dist.all_reduce(values, group=self._group.process_group)
        return dict(zip(sums, values.tolist(), strict=True))

    def _is_due(self, every: int | None) -> bool:
        """Return True at each `every`th step; None is after each epoch. The last step is always due."""
        return self.step % (every or self._steps_per_epoch) == 0 or self.step == self._total_steps

    def _evaluate_held_out(self) -> bool:
        """Measure and log the held-out loss; return True if the training is to stop early."""
        metrics = self.evaluate("")
        self.last_evaluation = metrics
        self.run.logger.log({f"{name}{EVAL}": value for name, value in metrics.items()}, step=self.step)
        if self.settings.early_stopping_patience is None:
            return False
        if self._best is None or metrics["loss"] < self._best[0]:
            self._best = (metrics["loss"], self.step)
            self._evaluations_since_best = 0
        else:
            self._evaluations_since_best += 1
        return self._evaluations_since_best >= self.settings.early_stopping_patience

    def _save_checkpoint(self) -> None:
        """Write weights, optimizer, random state and progress; drop older checkpoints, except the best one."""
        if not self.processes.is_main_process:
            return

        def write(path: Path) -> None:
            save_weights(self.model, path)
            self.learner.save_state(path / _OPTIMIZER)
            cuda = torch.cuda.get_rng_state() if self.model.device.type == "cuda" else None
            write_state(path / _RANDOM, {"cpu": torch.get_rng_state(), "cuda": cuda})
            best = None if self._best is None else list(self._best)
            state = {"step": self.step, "best": best, "evaluations_since_best": self._evaluations_since_best}
            write_json(path / STATE_FILE, state)

        self.folder.save_checkpoint(self.step, write, keep=() if self._best is None else (self._best[1],))

    def _load_checkpoint(self, path: Path) -> None:
        """Continue from a checkpoint."""
        try:
            load_weights(self.model, path)
            self.learner.load_state(path / _OPTIMIZER)
            random = torch.load(path / _RANDOM, weights_only=True)
            torch.set_rng_state(random["cpu"])
            if random["cuda"] is not None and self.model.device.type == "cuda":
                torch.cuda.set_rng_state(random["cuda"])
            state = read_json(path / STATE_FILE)
            self.step = int(state["step"])
            self._best = None if state["best"] is None else (float(state["best"][0]), int(state["best"][1]))
            self._evaluations_since_best = int(state["evaluations_since_best"])
        except Exception as error:  # of pickles, archives and tensors
            raise damaged_checkpoint(path, error) from error


def _load(settings: SFTSettings) -> PolicyModel:
    """Return the model with the adapter, or the weights, to train."""
    refuse_weights(settings, resolve_device(settings.device))
    model = settings.model
    if model not in EMBEDDED_NAMES and Path(model).expanduser().is_dir():
        model = str(Path(model).expanduser().resolve())  # the adapter may be loaded in another working directory
    lora = LoraSettings(r=settings.lora_r, alpha=settings.lora_alpha, dropout=settings.lora_dropout)
    return load_model(
        model,
        lora=lora if settings.use_lora else None,
        dtype=settings.dtype if settings.use_lora else "float32",
        device=settings.device,
        quantization=settings.quantization,
        seed=settings.seed,
    )


def _trained_tokens(rows: Sequence[Row]) -> int:
    return sum(record.trained_tokens for row in rows for record in row)
