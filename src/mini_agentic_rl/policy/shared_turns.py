"""Sampling and learning in turns of a fixed share of the torch thread, while a job learns.

A job that learns is one long turn: nothing is sampled until it ends. With shared turns it stops between the chunks of
its passes, and the engine steps there until sampling has had its share of the time; so both go on, and the weights are
the old ones until the job's optimizer step. Brief jobs of others, as reading weights to sample with, are done there as
well, and count as sampling. From there on the engine computes with the new ones: keys are computed
again, and the requests under way go on, each token under the version that sampled it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from .engine import Engine
from .model import PolicyModel


class BriefJobs(Protocol):
    """Jobs that a long one lets in."""

    def has_brief(self) -> bool:
        """Return True if one waits."""

    def run_brief(self) -> None:
        """Run those that wait."""


class SharedTurns:
    """The time that sampling is owed while a job learns. Used on the torch thread alone."""

    def __init__(
        self,
        model: PolicyModel,
        engine: Engine,
        on_weights: Callable[[], None],
        brief: BriefJobs | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """
        Args:
            engine: samples with `model`, on this thread.
            on_weights: forgets what was computed with older weights, where they have changed.
            brief: has the brief jobs of others; None has none.
            clock: seconds.
        """
        self._model = model
        self._engine = engine
        self._on_weights = on_weights
        self._brief = brief
        self._lent = False
        """True while others compute: what they compute has pauses of its own."""
        self._clock = clock
        self._rate = 0.0
        """Seconds of sampling for a second of learning."""
        self._owed = 0.0
        self._since = 0.0

    @contextmanager
    def shared(self, share: float) -> Iterator[None]:
        """Give sampling this share of the time, from 0 to below 1, for the duration of a block that learns."""
        self._rate = share / (1 - share)
        self._owed, self._since = 0.0, self._clock()
        self._model.on_pause = self._pause
        try:
            yield
        finally:
            self._model.on_pause = None

    def _pause(self) -> None:
        """Let others compute: brief jobs, and steps of the engine until the time that it is owed is used up, or it has
        nothing to do."""
        if self._lent:
            return
        self._owed += (self._clock() - self._since) * self._rate
        self._on_weights()
        if self._brief is not None and self._brief.has_brief():
            began = self._clock()
            with self._lend():
                self._brief.run_brief()
            self._owed -= self._clock() - began
        if self._owed > 0 and self._engine.pending():
            with self._lend():
                while self._owed > 0 and self._engine.pending():
                    began = self._clock()
                    self._engine.step()
                    self._owed -= self._clock() - began
        # A turn that nobody wanted is not made up for later: learning would wait for a burst of sampling.
        if not self._engine.pending():
            self._owed = min(self._owed, 0.0)
        self._since = self._clock()

    @contextmanager
    def _lend(self) -> Iterator[None]:
        self._lent = True
        try:
            with self._model.lent_to_sampling():
                yield
        finally:
            self._lent = False
