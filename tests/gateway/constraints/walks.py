"""Continuations that a constraint allows, drawn without a model."""

from __future__ import annotations

import numpy as np

from mini_agentic_rl.tokens import ConstraintError

VOCABULARY = 2**20
"""More ids than any tokenizer here has."""


def ids_of(mask) -> list[int]:
    """The ids in a mask."""
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def walk(constraint, end_ids, *, seed=0, limit=2000, vocabulary=VOCABULARY) -> list[int]:
    """Ids drawn evenly among those allowed, up to and with an end token."""
    rng = np.random.default_rng(seed)
    drawn: list[int] = []
    while not drawn or drawn[-1] not in end_ids:
        assert len(drawn) < limit, "it does not end"
        drawn.append(int(rng.choice([id_ for id_ in ids_of(constraint.allowed(vocabulary)) if id_ < vocabulary])))
        constraint.advance(drawn[-1])
    return drawn


def accepts(constraint, ids) -> bool:
    """Whether these ids, in this order, are a whole continuation."""
    for token_id in ids:
        try:
            if token_id not in ids_of(constraint.allowed(VOCABULARY)):
                return False
        except ConstraintError:
            return False
        constraint.advance(token_id)
    return True
