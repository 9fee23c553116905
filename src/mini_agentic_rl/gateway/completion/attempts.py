"""The attempts that calls are recorded under, each looked up once, before its first call; and the seeds of their calls.

A rollout with a seed (`SAMPLING_SEED` in its metadata) gives one to each of its calls that names none, by the place of
the call in the attempt. One with an expert prefix (`EXPERT_PREFIX`) has its first calls answered with recorded ones.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ...errors import log_failure
from ...http import BadRequestError
from ...semconv import EXPERT_PREFIX, SAMPLING_SEED
from ...store import LightningStore
from ...tokens import CompletionRecord
from ...types import Attempt, Rollout
from ..dialects import CallScope
from ..errors import NotFoundError, RecordingError

logger = logging.getLogger(__name__)

_REMEMBERED: Final = 4096
"""Attempts that are remembered; the one looked up longest ago is forgotten first."""


def unknown_attempt(reason: object) -> NotFoundError:
    """Return the error of a call whose rollout or attempt the store does not know."""
    return NotFoundError(f"the call cannot be recorded: {reason}", code="rollout_not_found")


def not_recorded(reason: object) -> RecordingError:
    """Return the error of a call that the store could not take."""
    return RecordingError(f"the call could not be recorded: {reason}", code="recording_failed")


@dataclass
class _Known:
    seed: int | None
    """Of the attempt; None where its rollout has none."""
    calls: int = 0
    prefix: list[CompletionRecord] = field(default_factory=list)
    """Recorded calls that its next calls are answered with."""


@dataclass
class KnownAttempts:
    """Look attempts up, and give each call of theirs a seed of its own, by its place in the attempt. Used from one
    event loop."""

    store: LightningStore
    prefixes: Mapping[str, Sequence[CompletionRecord]] = field(default_factory=dict)
    """Recorded calls by the name that a rollout has for them in its metadata (`EXPERT_PREFIX`)."""
    _known: OrderedDict[tuple[str, str], _Known] = field(default_factory=OrderedDict)

    async def check(self, scope: CallScope) -> None:
        """Return if calls under `scope` can be recorded.

        Raises:
            NotFoundError: the store knows no such rollout or attempt.
            BadRequestError: the rollout's seed is no integer.
            RecordingError: the store does not answer.
        """
        if scope is None or scope in self._known:
            return
        rollout_id, attempt_id = scope
        try:
            rollout = await self.store.get_rollout_by_id(rollout_id)
            attempts = [] if rollout is None else await self.store.query_attempts(rollout_id)
        except Exception as error:  # any store may stand behind the contract; the agent must learn of it
            log_failure(logger, error, f"could not look up attempt {attempt_id} of rollout {rollout_id}")
            raise not_recorded(error) from error
        if rollout is None:
            raise unknown_attempt(f"there is no rollout {rollout_id!r}")
        found = next((attempt for attempt in attempts if attempt.attempt_id == attempt_id), None)
        if found is None:
            raise unknown_attempt(f"rollout {rollout_id!r} has no attempt {attempt_id!r}")
        prefix = self.prefixes.get(str(rollout.metadata.get(EXPERT_PREFIX)), ())
        self._known[scope] = _Known(_seed_of(rollout, found), prefix=list(prefix))
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    def next_seed(self, scope: CallScope) -> int | None:
        """Return the seed of the next call under `scope`; None where its rollout has none."""
        known = None if scope is None else self._known.get(scope)
        if known is None or known.seed is None:
            return None
        text = f"{known.seed}/{known.calls}"
        known.calls += 1
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1

    def next_recorded(self, scope: CallScope, prompt_ids: Sequence[int]) -> CompletionRecord | None:
        """Return the recorded call that answers the next call under `scope`; None where it is to be sampled.

        An agent whose prompt is not the recorded one, token by token, has left the recorded conversation: the rest of
        that is dropped.
        """
        known = None if scope is None else self._known.get(scope)
        if known is None or not known.prefix:
            return None
        if not np.array_equal(known.prefix[0].prompt_ids, np.asarray(prompt_ids, np.int64)):
            known.prefix.clear()
            return None
        return known.prefix.pop(0)


def _seed_of(rollout: Rollout, attempt: Attempt) -> int | None:
    seed = rollout.metadata.get(SAMPLING_SEED)
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise BadRequestError(
            f"the metadata of rollout {rollout.rollout_id!r} has {SAMPLING_SEED}={seed!r}: expected an integer",
            code="rollout_seed",
        )
    return seed + attempt.sequence_id - 1 if rollout.config.max_attempts > 1 else seed
