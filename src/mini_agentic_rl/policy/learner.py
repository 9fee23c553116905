"""The learner: computes gradients of a loss over packed trees, and takes optimizer steps.

`forward_backward` may be called any number of times before `optim_step`; gradients add up. Every term carries its
weight, so splitting the terms over calls or chunks does not change the result.

`ValueLearner` adds a critic, which predicts the return from the policy's last hidden states. A state is all tokens
before a sampled one, so its value is read at the position that predicts that token; rollouts that share tokens share
states and values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import MissingPackageError
from ..files import reading
from ..tokens import PackedTrees, divide
from .errors import PolicyError, refuse_unknown_token
from .head import teacher_kl
from .load import refuse_non_finite, write_state
from .loss import Loss, LossInputs, SeenTerms
from .memory_plan import learning_chunk
from .model import DEFAULT_ADAPTER, PolicyModel
from .rank_group import RankGroup
from .settings import LearnerSettings, ValueSettings
from .tree_pass import ChunkTerms, Scorer, TreePass

_PARTS: Final = 4
"""A step is measured on one of so many parts of its trees first, and on all of them only near the bound: most steps
are far below it, and a pass over all trees costs half as much as learning."""
_NEAR: Final = 0.3
"""Share of the bound from which on all parts are measured."""
_SHORTEST: Final = 1e-3
"""Share of a step below which it is not shortened further: the rest is rounding."""
_FACTORS: Final = (0.1, 0.5)
"""The smallest and the largest factor by which one try shortens a step."""


class Learner:
    """An optimizer over one adapter, or over all weights under full training."""

    def __init__(
        self,
        model: PolicyModel,
        settings: LearnerSettings,
        adapter: str = DEFAULT_ADAPTER,
        group: RankGroup | None = None,
    ) -> None:
        """
        Args:
            group: ranks whose gradients are summed before a step; by default those of the model, if it has any.
        """
        self._model = model
        self._group = group or model.ranks
        self.settings = settings
        if not settings.max_batch_tokens:
            self.settings = settings.changed(max_batch_tokens=learning_chunk(model))
        self.adapter = adapter
        self.steps = 0
        self.parameters = model.trainable(adapter)
        if not self.parameters:
            raise PolicyError("nothing to train: no LoRA layer matches `target_modules`, and full training is off")
        if settings.schedule != "constant" and not settings.total_steps and "schedule" in settings.model_fields_set:
            raise PolicyError(f"{settings.schedule!r} needs `total_steps`", setting="schedule")
        if settings.checkpointing:
            model.enable_checkpointing()
        self._reference: list[Tensor] = []
        self._optimizer = _make_optimizer(self.parameters, settings, model.device)

    def forward_backward(
        self,
        packed: PackedTrees,
        loss_fn: Loss,
        inputs: LossInputs | None = None,
        *,
        gradient: bool = True,
        entropy_gradient: bool = False,
        seen: SeenTerms | None = None,
    ) -> dict[str, float]:
        """Add the gradient of `loss_fn` over `packed`; return the loss's metrics.

        The pack is computed in chunks of `max_batch_tokens`, and `loss_fn` is called with the terms of one at a time:
        losses and metrics are added up.

        Args:
            inputs: inputs of all terms of `packed`; None gives each term the weight 1.
            gradient: False computes only the metrics.
            entropy_gradient: True gives the loss entropies with a gradient.
            seen: receives the log-probabilities and entropies of each term.
        """
        model, settings = self._model, self.settings
        refuse_unknown_token(int(packed.tokens_T.max(initial=0)), model.vocab_size)
        sums: dict[str, float] = {}
        given = inputs or LossInputs(torch.ones(packed.term_count))

        def on_terms(chunk: ChunkTerms) -> Tensor | None:
            chunk_inputs = given.select(chunk.terms_N, model.device)
            if seen is not None:
                seen.take(chunk)
            divergence: Tensor | None = None
            if chunk_inputs.teacher_logprobs_SK is not None:
                divergence = teacher_kl(
                    model,
                    chunk.hidden_TM[chunk.at_N],
                    torch.from_numpy(packed.temperature_S[chunk.terms_N]).to(model.device),
                    chunk_inputs.teacher_tokens_SK,
                    chunk_inputs.teacher_logprobs_SK,
                    rows=settings.head_rows,
                )
            outputs = loss_fn(
                replace(
                    chunk_inputs,
                    logprobs_S=chunk.logprobs_N,
                    behaviour_logprobs_S=torch.as_tensor(
                        packed.behaviour_logprobs_S[chunk.terms_N], device=model.device
                    ),
                    entropy_S=chunk.entropy_N if entropy_gradient else chunk.entropy_N.detach(),
                    values_S=self._values(chunk),
                    teacher_kl_S=divergence,
                )
            )
            # Detached: a metric would keep the graph and the activations of every chunk.
            for name, value in {"loss": outputs.loss, **outputs.metrics}.items():
                sums[name] = sums.get(name, 0.0) + float(value.detach())
            return outputs.loss if gradient else None

        with torch.set_grad_enabled(gradient), model.using(self.adapter), self._training(gradient):
            TreePass(
                model,
                packed,
                max_tokens=settings.max_batch_tokens,
                head_rows=settings.head_rows,
                entropy_gradient=entropy_gradient,
                flex=settings.flex_attention,
            ).run(on_terms)
        return sums if model.ranks is None else _joined(model.ranks, sums, seen)

    def logprobs(self, packed: PackedTrees, *, reference: bool = False) -> Tensor:
        """Return log-probabilities [S] of the terms under the current weights, or under the reference.

        The reference is the weights of `keep_reference`, or the model with the adapter off where none were kept.
        """
        if not (reference and self._reference):
            return self.scorer(None if reference else self.adapter).logprobs(packed)
        weights = self._weights()
        with self._model.without_pauses():
            self._set_weights(self._reference)
            try:
                return self.scorer(self.adapter).logprobs(packed)
            finally:
                self._set_weights(weights)

    def keep_reference(self) -> None:
        """Keep a copy of the trained weights as the reference policy of KL penalties; `save_state` saves it too."""
        self._reference = self._weights()

    def _weights(self) -> list[Tensor]:
        """Return a copy of the trained weights."""
        return [parameter.detach().clone() for parameter in self.parameters]

    @torch.no_grad()
    def _set_weights(self, weights: Sequence[Tensor]) -> None:
        for parameter, weight in zip(self.parameters, weights, strict=True):
            parameter.copy_(weight)

    def optim_step(self) -> dict[str, float]:
        """Clip the gradients, step, clear them and count a version. A step with a non-finite gradient is skipped.

        Returns:
            `grad_norm` before clipping and the `learning_rate` used; `skipped` is 1 if the step was skipped.
        """
        return self.step_with(self.learning_rate(self.steps), self.settings.max_grad_norm)

    def bounded_step(self, packed: PackedTrees, sampled: int, max_kl: float, seen: SeenTerms) -> dict[str, float]:
        """Take an optimizer step, shortened until it moves the policy by no more than a bound.

        AdamW normalises gradients, so the first steps of a fresh optimizer, and those after many small gradients, move
        every weight by the whole learning rate. Such a step can destroy an agent's abilities. The divergence of a step
        is measured on the tokens that it learnt from:

            KL(pi_before || pi_after) ~ mean over sampled tokens of r - 1 - log r,  r = pi_after / pi_before

        (Schulman, "Approximating KL divergence", 2020: k3, unbiased where pi_before sampled them). A step that is too
        long is taken back in part, as in the line search of TRPO (Schulman et al. 2015, arXiv:1502.05477, appendix C).

        Costs a pass without a gradient over a quarter of `packed`; near the bound one over all of it, and another each
        time that the step is shortened. With dropout also one before the step. Keeps a second copy of the trained
        weights meanwhile. A step that changes only the other three quarters is not detected.

        Args:
            packed: the trees that the gradients come from.
            sampled: number of terms that a policy sampled, which come first; imitated terms follow them.
            max_kl: maximum divergence in nats a token; 0 is no bound.
            seen: log-probabilities of each term, computed by the pass of the gradients.

        Returns:
            The metrics of `Learner.optim_step`; under a bound also `update/kl`, in nats a token, as measured last, and
            `update/share`, the part of the step that was taken.
        """
        if max_kl == 0:
            return self.optim_step()
        # A pass with dropout has other log-probabilities than the policy.
        before_S = (self.logprobs(packed).cpu().numpy() if self.drops else seen.logprobs_S).astype(np.float64)

        def divergence(of: PackedTrees, terms_N: np.ndarray) -> float:
            """Return the mean of k3 over the sampled terms of some trees; 0 if there are none."""
            log_ratio_N = (self.logprobs(of).double().cpu().numpy() - before_S[terms_N])[terms_N < sampled]
            return float(np.mean(np.expm1(log_ratio_N) - log_ratio_N)) if log_ratio_N.size else 0.0

        of_all = np.arange(packed.term_count)
        weights_before = self._weights()
        with self._model.without_pauses():
            metrics = self.optim_step()
            part = divide(packed, _PARTS)[0]
            share, kl = 1.0, 0.0 if part is None else divergence(part.packed, part.terms_N)
            if kl > _NEAR * max_kl:
                kl = divergence(packed, of_all)
            while kl > max_kl and share > _SHORTEST:
                factor = float(np.clip(max_kl / kl, *_FACTORS))
                with torch.no_grad():
                    for parameter, before in zip(self.parameters, weights_before, strict=True):
                        parameter.lerp_(before, 1 - factor)
                share, kl = share * factor, divergence(packed, of_all)
        return metrics | {"update/kl": kl, "update/share": share}

    def step_with(self, rate: float, max_grad_norm: float) -> dict[str, float]:
        """Take an optimizer step as `optim_step` does, with this learning rate and bound of the gradient norm."""
        norm = self._clip(self.parameters, max_grad_norm)
        # One infinite gradient would make every weight NaN, and AdamW's moments with them.
        finite = math.isfinite(norm)
        if finite:
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            self._optimizer.step()
            # `Policy` detects the new version after the turn, and invalidates the keys of the old one.
            self._model.versions[self.adapter] += 1
        self._optimizer.zero_grad(set_to_none=True)
        # A skipped step counts too, so that the run ends and its schedule continues.
        self.steps += 1
        return {"grad_norm": norm, "learning_rate": rate, "skipped": 0.0 if finite else 1.0}

    @property
    def version(self) -> int:
        """Optimizer steps behind the adapter."""
        return self._model.versions[self.adapter]

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer, for a trainer of another library that takes the steps; it has to count them in `steps`."""
        return self._optimizer

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of optimizer step number `step`, from 0."""
        settings = self.settings
        if step < settings.warmup_steps:
            return settings.learning_rate * (step + 1) / (settings.warmup_steps + 1)
        if settings.schedule == "constant" or not settings.total_steps:
            return settings.learning_rate
        done = min(1.0, (step - settings.warmup_steps) / max(1, settings.total_steps - settings.warmup_steps))
        factor = 1 - done if settings.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
        return settings.learning_rate * factor

    def save_state(self, path: Path) -> None:
        """Write the optimizer's state, the step count and the reference weights, if any were kept."""
        state = {"optimizer": self._optimizer.state_dict(), "steps": self.steps, "reference": self._reference}
        write_state(path, state | {"version": self._model.versions[self.adapter]})

    def load_state(self, path: Path) -> None:
        """Read back what `save_state` wrote.

        Raises:
            UserError: the file is damaged.
        """
        with reading(path):
            self.take_state(torch.load(path, map_location=self._model.device, weights_only=True))
            for moments in self._optimizer.state.values():
                refuse_non_finite({name: each for name, each in moments.items() if torch.is_tensor(each)}, path)

    def take_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the state that `save_state` wrote, with its tensors on the model's device."""
        self._optimizer.load_state_dict(dict(state["optimizer"]))
        self.steps = int(state["steps"])
        self._model.versions[self.adapter] = int(state["version"])
        self._reference = list(state.get("reference", ()))

    def _clip(self, parameters: list[torch.nn.Parameter], max_norm: float) -> float:
        """Sum the gradients of all ranks and clip them; return their norm before."""
        if self._group is None:
            return float(torch.nn.utils.clip_grad_norm_(parameters, max_norm))
        self._group.sum_gradients(parameters)
        return self._group.clip(parameters, max_norm)

    def _values(self, chunk: ChunkTerms) -> Tensor | None:
        """Return values [N] of the states that a chunk's terms were sampled in; None without a critic."""
        return None

    def scorer(self, adapter: str | None) -> Scorer:
        """Return a scorer under an adapter, or the bare model, with this learner's chunk sizes."""
        return Scorer(self._model, adapter, **self.scorer_options)

    @property
    def scorer_options(self) -> dict[str, Any]:
        """Options of `Scorer` that make it compute as this learner does."""
        settings = self.settings
        return {
            "max_tokens": settings.max_batch_tokens,
            "head_rows": settings.head_rows,
            "flex": settings.flex_attention,
        }

    @property
    def drops(self) -> bool:
        """True if the adapter learns with dropout; its gradients then differ from those of the sampled policy."""
        return any(isinstance(dropout, torch.nn.Dropout) and dropout.p > 0 for dropout in self._dropouts())

    def _dropouts(self) -> Iterator[torch.nn.Module]:
        """Yield the module before the adapter's matrices in each layer: a dropout, or the identity."""
        for module in self._model.base.modules():
            if self.adapter in (dropouts := getattr(module, "lora_dropout", {})):
                yield dropouts[self.adapter]

    @contextmanager
    def _training(self, gradient: bool) -> Iterator[None]:
        """Enable the adapter's dropout for a block that learns. The base's dropout stays off, as in sampling."""
        base = self._model.base
        # transformers checkpoints in training mode only.
        base.train(gradient and self.settings.checkpointing)
        for module in base.modules():
            if isinstance(module, torch.nn.Dropout):
                module.eval()
        for dropout in self._dropouts():
            dropout.train(gradient)
        try:
            yield
        finally:
            base.eval()


def _joined(ranks: RankGroup, sums: dict[str, float], seen: SeenTerms | None) -> dict[str, float]:
    """Return the sums of all ranks' metrics, and add their numbers of terms to `seen`."""
    total: dict[str, float] = {}
    for rank_sums, rank_seen in ranks.gather((sums, seen)):
        for name, value in rank_sums.items():
            total[name] = total.get(name, 0.0) + value
        if seen is not None and rank_seen is not None:
            seen.join(rank_seen)
    return total


def _make_optimizer(
    parameters: list[torch.nn.Parameter], settings: LearnerSettings, device: torch.device
) -> torch.optim.Optimizer:
    options: dict[str, Any] = {
        "lr": settings.learning_rate,
        "betas": settings.betas,
        "weight_decay": settings.weight_decay,
    }
    if settings.optimizer == "adamw" or (settings.optimizer == "auto" and device.type != "cuda"):
        return torch.optim.AdamW(parameters, **options)
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as error:
        if settings.optimizer == "auto":
            return torch.optim.AdamW(parameters, **options)
        raise MissingPackageError("adamw_8bit", "bitsandbytes", extra="quant", setting="optimizer") from error
    optimizer: torch.optim.Optimizer = AdamW8bit(parameters, **options)
    return optimizer


_EPSILON = 1e-6


class ValueHead(nn.Module):
    """v = w · h / (rms(h) sqrt(M)) + b, for hidden states h of M numbers; in float32, zero at first.

    Hidden states are normalised, so that the learning rate does not depend on the model.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        # Zero, so that the first values are 0 and the first advantages are the returns.
        self.weight = nn.Parameter(torch.zeros(hidden_size))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, hidden_TM: Tensor) -> Tensor:
        """Return values [T]."""
        x_TM = hidden_TM.float()
        inverse_rms_T = torch.rsqrt(x_TM.square().mean(-1) + _EPSILON)
        return (x_TM @ self.weight) * inverse_rms_T / math.sqrt(x_TM.shape[-1]) + self.bias


class ValueLearner(Learner):
    """A learner with a critic: losses get `values_S`, and `optim_step` steps both."""

    def __init__(
        self,
        model: PolicyModel,
        settings: LearnerSettings,
        adapter: str = DEFAULT_ADAPTER,
        value: ValueSettings | None = None,
    ) -> None:
        super().__init__(model, settings, adapter)
        self.value_settings = value or ValueSettings()
        self.head = ValueHead(model.base.config.get_text_config().hidden_size).to(model.device)
        self.head_steps = 0
        """Number of optimizer steps that the head has taken."""
        self._head_optimizer = torch.optim.AdamW(
            self.head.parameters(), lr=self.value_settings.learning_rate, betas=settings.betas, weight_decay=0.0
        )

    def values(self, packed: PackedTrees) -> Tensor:
        """Return values [S] of the states that the terms were sampled in."""
        return self.scorer(self.adapter).each_term(packed, self._values)

    def optim_step(self) -> dict[str, float]:
        """Step the adapter and the head; if the step is skipped, the head keeps its weights too."""
        metrics = super().optim_step()
        if metrics["skipped"]:
            self._head_optimizer.zero_grad(set_to_none=True)
            return metrics
        return metrics | self._step_head()

    def value_step(self) -> dict[str, float]:
        """Step the head alone and clear all other gradients; no version is counted."""
        for parameter in self.parameters:
            parameter.grad = None
        return self._step_head()

    def save_head(self, path: Path) -> None:
        """Write the head, and its optimizer's state."""
        state = {"head": self.head.state_dict(), "optimizer": self._head_optimizer.state_dict()}
        write_state(path, {**state, "steps": self.head_steps})

    def load_head(self, path: Path) -> None:
        """Read back what `save_head` wrote.

        Raises:
            UserError: the file is damaged.
        """
        with reading(path):
            state: dict[str, Any] = torch.load(path, map_location=self._model.device, weights_only=True)
            refuse_non_finite(state["head"], path)
            self.take_head(state)

    def take_head(self, state: Mapping[str, Any]) -> None:
        """Continue from the state that `save_head` wrote, with its tensors on the model's device."""
        self.head.load_state_dict(state["head"])
        self._head_optimizer.load_state_dict(dict(state["optimizer"]))
        self.head_steps = int(state["steps"])

    def _values(self, chunk: ChunkTerms) -> Tensor:
        hidden_TM = chunk.hidden_TM if self.value_settings.trains_adapter else chunk.hidden_TM.detach()
        values_T: Tensor = self.head(hidden_TM)
        return values_T[chunk.at_N]

    def _step_head(self) -> dict[str, float]:
        norm = self._clip(list(self.head.parameters()), self.value_settings.max_grad_norm)
        if math.isfinite(norm):
            self._head_optimizer.step()
        self._head_optimizer.zero_grad(set_to_none=True)
        self.head_steps += 1
        return {"value/grad_norm": norm}
