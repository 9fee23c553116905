"""Tokens that are asked of places in sequences, packed as one tree."""

from __future__ import annotations

import numpy as np
import pytest

from mini_agentic_rl.integrations.tinker.targets import TargetSequence, pack_targets


def sequence_of(tokens, places, targets) -> TargetSequence:
    return TargetSequence(np.array(tokens), np.array(places, np.int64), np.array(targets, np.int64))


def test_a_common_beginning_is_packed_once_and_every_asked_token_keeps_its_place():
    sequences = [
        sequence_of([1, 2, 3, 4], [0, 1, 2, 3], [2, 3, 4, 9]),
        sequence_of([1, 2, 7], [1, 1, 2], [7, 8, 5]),
        sequence_of([1, 2], [1], [6]),
    ]
    packed = pack_targets(sequences)
    assert packed.token_count == 5
    assert packed.target_S.tolist() == [2, 3, 4, 9, 7, 8, 5, 6]
    term = 0
    for number, sequence in enumerate(sequences):
        for place in sequence.place_N:
            at, path = int(packed.predicted_at_S[term]), []
            while at >= 0:
                path.append(int(packed.tokens_T[at]))
                at = int(packed.parent_T[at])
            assert path[::-1] == sequence.tokens_T[: place + 1].tolist()
            assert packed.trajectory_S[term] == number
            term += 1
    assert packed.term_count == term


def test_sequences_of_which_nothing_is_asked_are_refused():
    with pytest.raises(ValueError, match="have no targets"):
        pack_targets([sequence_of([1, 2], [], [])])
