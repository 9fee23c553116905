"""Target tokens at positions of sequences, packed as one tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...tokens import PackedTrees, TokenTree, lay_out

Ints = npt.NDArray[np.int64]


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
    """Lay out the sequences as one tree; the terms are those of the first sequence, then those of the next.

    Raises:
        ValueError: there is no target.
    """
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
