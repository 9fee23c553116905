"""The losses that a Tinker client names: sums over its target tokens, with its own weights or advantages.

With log p of a token under the adapter that learns, log q as the sampler gave it, r = p / q, an advantage A and a
weight w, the losses are the sums of

    cross_entropy          -w log p
    importance_sampling    -r A
    ppo                    -min(r A, clip(r) A)                    (Schulman et al. 2017)
    cispo                  -sg(clip(r)) A log p                    (MiniMax 2025)
    dro                    -(A log p - beta/2 (log r)^2)           (Richemond et al. 2024)
    gspo                   as ppo, with r = sg(s) p / sg(p), s the geometric mean of p / q over the tokens that
                           `sequence_ratio_mask` marks             (Zheng et al. 2025)

where sg stops the gradient and clip bounds a ratio by `clip_low_threshold` and `clip_high_threshold` of the loss's
configuration, or of each token if the data have them. Losses are not averaged: clients scale weights and advantages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...policy import LossInputs, LossOutputs
from ...tokens import PackedTrees, TokenTree, lay_out
from .requests import LossDatum
from .settings import RefusedError

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Config = Mapping[str, float]


@dataclass(frozen=True)
class ClippedInputs(LossInputs):
    """Inputs of a loss, with per-term bounds of the ratio."""

    clip_low_S: Tensor | None = None
    clip_high_S: Tensor | None = None


@dataclass(frozen=True)
class LossFields:
    """The tensors and the configuration of a loss."""

    required: tuple[str, ...] = ()
    """Tensors that each datum needs besides `target_tokens`."""
    optional: tuple[str, ...] = ()
    config: Config = field(default_factory=dict)
    """Names and defaults of the configuration."""


_LARGEST: Final = float(np.finfo(np.float32).max)
_SAMPLED: Final = ("logprobs", "advantages")
_BOUNDS: Final = ("clip_low_threshold", "clip_high_threshold")
_CLIP: Final = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}

LOSSES: Final = {
    "cross_entropy": LossFields(optional=("weights",)),
    "importance_sampling": LossFields(_SAMPLED),
    "ppo": LossFields(_SAMPLED, _BOUNDS, _CLIP),
    "cispo": LossFields(_SAMPLED, _BOUNDS, _CLIP),
    "dro": LossFields(_SAMPLED, config={"beta": 0.05}),
    "gspo": LossFields((*_SAMPLED, "sequence_ratio_mask"), _BOUNDS, _CLIP),
}


def loss_of_terms(name: str, given: LossInputs, config: Config) -> Tensor:
    """Return the loss of each term [S], as the top of the module has it."""
    logprobs_S = given.logprobs_S
    if name == "cross_entropy":
        return -logprobs_S * given.weights_S
    advantages_S, log_ratio_S = given.advantages_S, logprobs_S - given.old_logprobs_S
    if name == "importance_sampling":
        return -torch.exp(log_ratio_S) * advantages_S
    if name == "dro":
        return -(advantages_S * logprobs_S - 0.5 * config["beta"] * log_ratio_S**2)
    if name == "gspo":
        assert given.rollout_S is not None
        ratio_S = torch.exp(given.rollout_S + logprobs_S - logprobs_S.detach())
    else:
        ratio_S = torch.exp(log_ratio_S)
    low_S = high_S = None
    if isinstance(given, ClippedInputs):
        low_S, high_S = given.clip_low_S, given.clip_high_S
    if low_S is None:
        low_S = ratio_S.new_tensor(config["clip_low_threshold"])
    if high_S is None:
        high_S = ratio_S.new_tensor(config["clip_high_threshold"])
    clipped_S = torch.minimum(torch.maximum(ratio_S, low_S), high_S)
    if name == "cispo":
        return -clipped_S.detach() * advantages_S * logprobs_S
    return -torch.minimum(ratio_S * advantages_S, clipped_S * advantages_S)


@dataclass(frozen=True)
class LossBatch:
    """The data of one request, packed for the learner."""

    name: str
    """Name of the loss."""
    config: Config
    packed: PackedTargets
    inputs: ClippedInputs
    shapes: Sequence[tuple[int, ...]]
    """Shape of each datum's targets: [tokens], or [tokens, targets of each]."""
    ratio_mask_S: Floats | None
    """1 for terms in the mean of a sequence's ratio; None for losses of tokens."""

    def __call__(self, given: LossInputs) -> LossOutputs:
        """Return the loss of some of the terms."""
        return LossOutputs(loss_of_terms(self.name, given, self.config).sum())

    def split(self, values_S: Floats) -> list[Floats]:
        """Split values of the terms [S] by datum, in the shape of its targets."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes])[:-1]
        return [each.reshape(shape) for each, shape in zip(np.split(values_S, ends), self.shapes, strict=True)]

    def sequence_log_ratios(self, logprobs_S: Floats) -> Tensor:
        """Return for each term [S] the mean log ratio of its sequence over the marked terms."""
        assert self.ratio_mask_S is not None
        sequence_S, marked_S = self.packed.trajectory_S, self.ratio_mask_S != 0
        log_ratio_S = (logprobs_S - self.inputs.old_logprobs_S.numpy()) * marked_S
        sums = np.bincount(sequence_S, log_ratio_S, len(self.shapes))
        counts = np.bincount(sequence_S, marked_S, len(self.shapes))
        return torch.from_numpy((sums / np.maximum(counts, 1))[sequence_S].astype(np.float32))


def loss_batch(
    name: str, config: Mapping[str, float | str], data: Sequence[LossDatum], *, vocabulary: int, context_length: int
) -> LossBatch:
    """Check the data of a request, and pack them for the learner.

    Args:
        vocabulary: number of token ids.
        context_length: most tokens of a sequence.
    """
    if name not in LOSSES:
        raise RefusedError(f"unknown loss {name[:100]!r}: there are {', '.join(LOSSES)}; any other runs in the client")
    loss = LOSSES[name]
    for number, datum in enumerate(data):
        _check(datum, name, loss, f"data[{number}]", vocabulary, context_length)
    sequences, shapes = [], []
    for datum in data:
        targets = datum.inputs["target_tokens"].astype(np.int64)
        shapes.append(targets.shape)
        each = targets.size // targets.shape[0]
        places = np.repeat(np.arange(targets.shape[0], dtype=np.int64), each)
        sequences.append(TargetSequence(datum.tokens_T, places, targets.reshape(-1)))

    def stream(key: str) -> Any:
        if any(key not in datum.inputs for datum in data):
            return None
        return torch.from_numpy(np.concatenate([datum.inputs[key].reshape(-1) for datum in data]).astype(np.float32))

    packed = pack_targets(sequences)
    weights_S, mask_S = stream("weights"), stream("sequence_ratio_mask")
    return LossBatch(
        name,
        _config(name, loss, config),
        packed,
        ClippedInputs(
            torch.ones(packed.term_count) if weights_S is None else weights_S,
            advantages_S=stream("advantages"),
            old_logprobs_S=stream("logprobs"),
            clip_low_S=stream("clip_low_threshold"),
            clip_high_S=stream("clip_high_threshold"),
        ),
        shapes,
        None if mask_S is None else mask_S.numpy(),
    )


def _check(datum: LossDatum, name: str, loss: LossFields, where: str, vocabulary: int, context_length: int) -> None:
    length = datum.tokens_T.size
    check_ids(datum.tokens_T, f"{where}.model_input", vocabulary)
    if length > context_length:
        raise RefusedError(f"{where}.model_input has {length} tokens, but the context holds {context_length}")
    wanted = ("target_tokens", *loss.required)
    missing = [key for key in wanted if key not in datum.inputs]
    if missing:
        raise RefusedError(f"{where}.loss_fn_inputs has no {missing[0]!r}, which {name!r} needs")
    extra = sorted(set(datum.inputs) - {*wanted, *loss.optional})
    if extra:
        takes = ", ".join((*wanted, *loss.optional))
        raise RefusedError(f"{where}.loss_fn_inputs.{extra[0][:100]} is unknown: {name!r} takes {takes}")
    targets = datum.inputs["target_tokens"]
    if targets.dtype.kind != "i" or targets.ndim not in (1, 2) or 0 in targets.shape:
        raise RefusedError(f"{where}.loss_fn_inputs.target_tokens must be whole numbers [tokens] or [tokens, targets]")
    if targets.shape[0] != length:
        raise RefusedError(
            f"{where}.loss_fn_inputs.target_tokens has {targets.shape[0]} rows, but model_input has {length} tokens"
        )
    check_ids(targets, f"{where}.loss_fn_inputs.target_tokens", vocabulary)
    for key, values in datum.inputs.items():
        if values.shape != targets.shape:
            raise RefusedError(
                f"{where}.loss_fn_inputs.{key} has the shape {list(values.shape)}, but target_tokens "
                f"{list(targets.shape)}"
            )
        if not np.isfinite(values).all():
            raise RefusedError(f"{where}.loss_fn_inputs.{key} holds a number that is not finite")


def check_ids(ids: npt.NDArray[np.int64], where: str, vocabulary: int) -> None:
    """Check token ids."""
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary:
        bad = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        raise RefusedError(f"{where} holds the token id {bad}, which is outside 0..{vocabulary - 1}")


def _config(name: str, loss: LossFields, given: Mapping[str, float | str]) -> Config:
    unknown = sorted(set(given) - set(loss.config))
    if unknown:
        raise RefusedError(
            f"loss_fn_config.{unknown[0][:100]} is unknown: {name!r} takes {', '.join(loss.config) or 'none'}"
        )
    config = dict(loss.config)
    for key, value in given.items():
        if isinstance(value, str) or not abs(value) <= _LARGEST:
            raise RefusedError(f"loss_fn_config.{key} must be a finite number, not {str(value)[:100]}")
        config[key] = float(value)
    return config


# Target tokens at positions of sequences, packed as one tree.


@dataclass(frozen=True)
class TargetSequence:
    """A sequence, and the target tokens at its positions."""

    tokens_T: Ints
    """Token ids, at least one."""
    place_N: Ints
    """Position in the sequence after which each target would come."""
    target_N: Ints
    """Token ids of the targets."""


@dataclass(frozen=True)
class PackedTargets(PackedTrees):
    """Packed trees whose terms need not be tokens of the trees; `token_S` is the token that each comes after."""

    target_ids_S: Ints
    """Token ids of the targets."""

    @property
    def predicted_at_S(self) -> Ints:
        """Index into T of the token after which each target would come."""
        return self.token_S

    @property
    def target_S(self) -> Ints:
        """Token id of each term."""
        return self.target_ids_S


def pack_targets(sequences: Sequence[TargetSequence]) -> PackedTargets:
    """Lay out the sequences as one tree; the terms are those of the first sequence, then those of the next."""
    tree = TokenTree()
    nodes = [tree.insert_tokens(sequence.tokens_T) for sequence in sequences]
    sizes = [sequence.target_N.size for sequence in sequences]
    if sum(sizes) == 0:
        raise ValueError("these sequences have no targets")
    layout = lay_out([tree])
    # A later sequence may end within the run of an earlier one, or split it: paths are read when the tree is whole.
    where = [layout.path(0, node)[each.place_N] for node, each in zip(nodes, sequences, strict=True)]
    count = sum(sizes)
    numbers_S = np.repeat(np.arange(len(sequences), dtype=np.int64), sizes)
    return PackedTargets(
        tokens_T=layout.tokens_T,
        positions_T=layout.positions_T,
        parent_T=layout.parent_T,
        end_T=layout.end_T,
        tree_starts=layout.tree_starts,
        token_S=np.concatenate(where).astype(np.int64),
        behaviour_logprobs_S=np.zeros(count, np.float32),
        temperature_S=np.ones(count, np.float32),
        trajectory_S=numbers_S,
        call_S=numbers_S,
        version_S=np.zeros(count, np.int64),
        target_ids_S=np.concatenate([each.target_N for each in sequences]).astype(np.int64),
    )
