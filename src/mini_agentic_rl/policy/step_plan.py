"""A sequence that is sampled, and the plan of a forward pass: which tokens of which sequences it computes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from ..tokens import TokenConstraint, TokenDelta, TokenRequest
from .drafts import Guess, Indexed
from .kv_cache import BlockTable
from .sampler import Draw, TokenCounts

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class RunningSequence:
    """A request that waits or is being sampled."""

    request: TokenRequest
    seed: int
    on_delta: Callable[[TokenDelta], None]
    tokens: list[int]
    """Prompt and what was sampled so far."""
    constraint: TokenConstraint | None = None
    """Grammar that has followed the sampled tokens so far; like them it outlives a preemption."""
    table: BlockTable = field(default_factory=BlockTable)
    computed: int = 0
    """Number of `tokens` whose keys are in the cache."""
    cached: int | None = None
    """Prompt tokens found in the prefix cache at first admission."""
    cancelled: bool = False
    """Set by any thread; the scheduler drops the sequence before its next pass."""
    failure: str = ""
    """Reason of the cancellation, where no token obeys the constraint."""
    undelivered: list[Draw] = field(default_factory=list)
    """Draws that `on_delta` has not been given yet."""
    version: int = 0
    """Policy version of the last draw."""
    counts: TokenCounts | None = None
    """Counts of how often each token was sampled, where penalties ask for it."""

    def __post_init__(self) -> None:
        self.indexed = Indexed(self.tokens)
        """Entry in the table that guesses are taken from."""
        sampling = self.request.sampling
        if sampling.repetition_penalty != 1:
            self.counts = TokenCounts(prompt=self.request.prompt_ids)
        elif sampling.presence_penalty or sampling.frequency_penalty:
            self.counts = TokenCounts()

    def tell(self, delta: TokenDelta) -> None:
        """Give the callback a delta. One that raises ends its own request, and no other of the pass."""
        try:
            self.on_delta(delta)
        except Exception as error:  # of any kind: it is the caller's
            if not self.cancelled:
                logger.exception("a request is cancelled, since its callback raised: %s", error)
            self.cancelled = True

    @property
    def position(self) -> int:
        """Number of tokens sampled so far."""
        return len(self.tokens) - len(self.request.prompt_ids)

    @property
    def left(self) -> int:
        """Number of tokens that are still to compute; with one of them, it decodes."""
        return len(self.tokens) - self.computed


@dataclass(frozen=True, eq=False)
class Segment:
    """`count` new tokens of one sequence in one forward pass, from its `computed` on."""

    sequence: RunningSequence
    count: int
    twin: Segment | None = None
    """Segment of the same forward pass that computes the same tokens after the same history. Its keys and hidden states
    serve here too, so nothing is computed for this one."""
    guess: Guess | None = None
    """Tokens computed behind those, in the hope that they are what is drawn."""

    @property
    def start(self) -> int:
        """Position of the first token."""
        return self.sequence.computed

    @property
    def stop(self) -> int:
        """Position after the last token."""
        return self.sequence.computed + self.count

    @property
    def guessed(self) -> tuple[int, ...]:
        """Tokens from `stop` on that are computed as well."""
        return () if self.guess is None else self.guess.tokens

    @property
    def cost(self) -> int:
        """Tokens that go through the model for it."""
        return self.count + len(self.guessed) if self.twin is None else 0

    @property
    def draws(self) -> bool:
        """True if the segment reaches the sequence's last token, so that the next one is drawn, and one more behind
        each guessed one."""
        return self.stop == len(self.sequence.tokens)


@dataclass(frozen=True)
class StepPlan:
    """The tokens of one forward pass; all segments use one adapter."""

    adapter: str | None
    prefill: list[Segment]
    decode: list[Segment]
