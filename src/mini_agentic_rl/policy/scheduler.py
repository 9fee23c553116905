"""Continuous batching with chunked prefill: choose the tokens that the next forward pass computes.

`schedule` chooses, `postprocess` records what was drawn. Sequences that decode go first, prompts fill the rest of the
token budget, the oldest first. When the cache has no block left, the youngest sequence is preempted: it gives its
blocks back and waits again. Its draws depend on seed and position only, so it goes on as if nothing had happened.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mini_agentic_rl.tokens import FinishReason, TokenConstraint, TokenDelta, TokenRequest

from .kv_cache import BlockCache, BlockTable
from .sampler import Draw


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

    @property
    def sampled(self) -> Sequence[int]:
        """Tokens behind the prompt."""
        return self.tokens[len(self.request.prompt_ids) :]


@dataclass(frozen=True, eq=False)
class Segment:
    """`count` new tokens of one sequence in one forward pass, from its `computed` on."""

    sequence: RunningSequence
    count: int
    twin: Segment | None = None
    """Segment of the same forward pass that computes the same tokens after the same history. Its keys and hidden states
    serve here too, so nothing is computed for this one."""

    @property
    def start(self) -> int:
        """Position of the first token."""
        return self.sequence.computed

    @property
    def stop(self) -> int:
        """Position after the last token."""
        return self.sequence.computed + self.count

    @property
    def draws(self) -> bool:
        """True if the segment reaches the sequence's last token, so that the next one is drawn."""
        return self.stop == len(self.sequence.tokens)


@dataclass(frozen=True)
class StepPlan:
    """The tokens of one forward pass; all segments use one adapter."""

    adapter: str | None
    prefill: list[Segment]
    decode: list[Segment]


class Scheduler:
    """The waiting and the running sequences. Not thread-safe: only the torch thread uses it."""

    def __init__(
        self,
        cache: BlockCache,
        version: Callable[[str | None], int],
        *,
        max_batch_tokens: int,
        max_running: int,
        context_length: int,
    ) -> None:
        """
        Args:
            version: returns the policy version of an adapter.
            max_batch_tokens: the most tokens of a forward pass.
            max_running: the most sequences that hold blocks at once.
            context_length: the most tokens of a sequence, prompt included.
        """
        self._cache = cache
        self._version = version
        self._max_batch_tokens = max_batch_tokens
        self._max_running = max_running
        self._context_length = context_length
        self._waiting: deque[RunningSequence] = deque()
        # In the order of their admission: the last one is the youngest, and the first to be preempted.
        self._running: list[RunningSequence] = []
        # Adapters by their last turn, the latest at the end.
        self._turns: list[str | None] = []
        # The segment that computes each history, in the pass that is being planned.
        self._firsts: dict[tuple[int, tuple[int, ...]], Segment] = {}

    @property
    def busy(self) -> bool:
        """True if a sequence waits or runs."""
        return bool(self._waiting or self._running)

    @property
    def load(self) -> tuple[int, int]:
        """Number of sequences that run, and that wait."""
        return len(self._running), len(self._waiting)

    def add(self, sequence: RunningSequence) -> None:
        """Put a sequence at the end of the queue."""
        self._waiting.append(sequence)

    def schedule(self) -> StepPlan | None:
        """Return the next forward pass; None when there is nothing to compute."""
        self._drop_cancelled()
        for adapter in self._adapters_in_turn():
            plan = self._plan(adapter)
            if plan is not None:
                self._turns = [*(other for other in self._turns if other != adapter), adapter]
                return plan
        return None

    def _plan(self, adapter: str | None) -> StepPlan | None:
        """Return the next forward pass with `adapter`; None where none of its sequences can go on now."""
        self._firsts.clear()
        # Decoding first: a long prompt must not hold up the answers under way.
        decode = self._decodes(adapter)
        budget = self._max_batch_tokens - sum(segment.twin is None for segment in decode)
        prefill: list[Segment] = []
        for sequence in self._running:
            if budget > 0 and sequence.request.adapter == adapter and len(sequence.tokens) - sequence.computed > 1:
                budget -= self._take(sequence, budget, prefill)
        while budget > 0 and self._waiting and len(self._running) < self._max_running:
            sequence = self._waiting[0]
            # The queue stops at the first one that cannot go: overtaking would starve a long prompt.
            if sequence.request.adapter != adapter or not self._admit(sequence):
                break
            self._waiting.popleft()
            self._running.append(sequence)
            # With all but one token found in the cache, it decodes at once.
            one_token = len(sequence.tokens) - sequence.computed == 1
            budget -= self._take(sequence, budget, decode if one_token else prefill)
        return StepPlan(adapter, prefill, decode) if prefill or decode else None

    def postprocess(self, plan: StepPlan, drawing: Sequence[Segment], draws: Sequence[Draw]) -> None:
        """Record one forward pass: `draws` are the tokens drawn for the segments in `drawing`."""
        for segment in (*plan.prefill, *plan.decode):
            segment.sequence.computed += segment.count
        for segment, draw in zip(drawing, draws, strict=True):
            sequence = segment.sequence
            sequence.tokens.append(draw.token)
            if sequence.constraint is not None:
                sequence.constraint.advance(draw.token)
            sequence.undelivered.append(draw)
            sequence.version = self._version(sequence.request.adapter)
            reason = self._finish_reason(sequence, draw.token)
            if reason is not None:
                self._release(sequence)
            if reason is not None or sequence.request.delivery != "whole":
                self._deliver(sequence, reason)

    def weights_changed(self, adapter: str) -> None:
        """Let the running sequences of `adapter` compute their keys again, with the new weights."""
        self._start_over([s for s in self._running if s.request.adapter == adapter])
        self._cache.forget(adapter)

    def forget_keys(self) -> None:
        """Let all running sequences compute their keys again: the cache is about to be emptied."""
        self._start_over(list(self._running))
        self._cache.clear()

    def fail_all(self) -> list[RunningSequence]:
        """Drop everything (after an error in the forward pass) and return what was dropped."""
        dropped = [*self._running, *self._waiting]
        for sequence in self._running:
            self._cache.close(sequence.table)
        self._running.clear()
        self._waiting.clear()
        return dropped

    def _decodes(self, adapter: str | None) -> list[Segment]:
        ready: list[RunningSequence] = []
        for sequence in list(self._running):
            # An earlier one in this loop may have preempted it.
            if sequence not in self._running or sequence.request.adapter != adapter:
                continue
            if len(sequence.tokens) - sequence.computed != 1:
                continue
            while not self._cache.grow(sequence.table, len(sequence.tokens)):
                youngest = self._running[-1]
                if youngest is sequence and len(self._running) == 1:
                    self._finish_early(sequence)
                    break
                self._preempt(youngest)
                ready = [other for other in ready if other is not youngest]
                if youngest is sequence:
                    break
            else:
                ready.append(sequence)
        # A published block must be computed, and only now is it certain that none of these is preempted.
        return [self._segment(sequence, 1) for sequence in ready]

    def _take(self, sequence: RunningSequence, budget: int, segments: list[Segment]) -> int:
        """Append as much of `sequence` as the budget allows; return the number of tokens that this costs."""
        segment = self._segment(sequence, min(budget, len(sequence.tokens) - sequence.computed))
        segments.append(segment)
        return segment.count if segment.twin is None else 0

    def _segment(self, sequence: RunningSequence, count: int) -> Segment:
        """Return the next `count` tokens as a segment, with its full blocks published.

        The prefix-tree node of the last full block and the tokens behind that block identify a history. A segment of
        the same step with both alike computes the same.
        """
        table, stop = sequence.table, sequence.computed + count
        self._cache.publish(table, sequence.tokens, stop)
        history = (table.node, tuple(sequence.tokens[table.published * self._cache.block_size : stop]))
        first = self._firsts.get(history)
        # The twin must compute all of these tokens, and so must not begin later.
        if first is not None and first.start <= sequence.computed:
            return Segment(sequence, count, first)
        segment = Segment(sequence, count)
        self._firsts[history] = segment
        return segment

    def _admit(self, sequence: RunningSequence) -> bool:
        """Give `sequence` blocks for all of its tokens; False, and nothing changed, where there are too few."""
        adapter = sequence.request.adapter
        table = self._cache.open((adapter or "", self._version(adapter)), sequence.tokens)
        if not self._cache.grow(table, len(sequence.tokens)):
            self._cache.close(table)
            return False
        sequence.table = table
        sequence.computed = table.published * self._cache.block_size
        if sequence.cached is None:
            sequence.cached = sequence.computed
        return True

    def _adapters_in_turn(self) -> list[str | None]:
        """Return the adapters that have something to do, those first whose last turn is longest ago.

        Taking turns keeps one adapter's long answers from holding up another's. All are tried, because a waiting one
        may find no room while another runs.
        """
        adapters = [s.request.adapter for s in self._running]
        if self._waiting:
            adapters.append(self._waiting[0].request.adapter)
        turns = self._turns
        return sorted(dict.fromkeys(adapters), key=lambda adapter: turns.index(adapter) if adapter in turns else -1)

    def _finish_reason(self, sequence: RunningSequence, token: int) -> FinishReason | None:
        if token in sequence.request.sampling.stop_token_ids:
            return "stop"
        full = len(sequence.tokens) >= self._context_length
        if full or len(sequence.sampled) >= sequence.request.sampling.max_tokens:
            return "length"
        return None

    def _finish_early(self, sequence: RunningSequence) -> None:
        """End a sequence for which alone the cache is too small, as if it had met its length bound."""
        self._release(sequence)
        self._deliver(sequence, "length")

    def _drop_cancelled(self) -> None:
        for sequence in [s for s in self._running if s.cancelled]:
            self._release(sequence)
            self._deliver(sequence, "cancelled")
        for sequence in [s for s in self._waiting if s.cancelled]:
            self._waiting.remove(sequence)
            self._deliver(sequence, "cancelled")

    def _deliver(self, sequence: RunningSequence, reason: FinishReason | None) -> None:
        """Hand over the draws that were not handed over yet."""
        draws, sequence.undelivered = sequence.undelivered, []
        first = len(draws) == len(sequence.sampled)
        sequence.on_delta(
            TokenDelta(
                token_ids=tuple(draw.token for draw in draws),
                logprobs=tuple(draw.logprob for draw in draws),
                top_logprobs=tuple(draw.top for draw in draws) if any(draw.top for draw in draws) else (),
                forced=tuple(draw.forced for draw in draws) if any(draw.forced for draw in draws) else (),
                finish_reason=reason,
                version=sequence.version,
                cached_tokens=(sequence.cached or 0) if first else 0,
                failure=sequence.failure,
            )
        )

    def _release(self, sequence: RunningSequence) -> None:
        self._running.remove(sequence)
        self._cache.close(sequence.table)

    def _start_over(self, sequences: Sequence[RunningSequence]) -> None:
        # Each goes to the front of the queue, so the last one first: their order stays.
        for sequence in reversed(sequences):
            self._preempt(sequence)
            # What was drawn with the old weights must not be reported under the new version.
            if sequence.undelivered:
                self._deliver(sequence, None)

    def _preempt(self, sequence: RunningSequence) -> None:
        self._release(sequence)
        sequence.computed = 0
        self._waiting.appendleft(sequence)
