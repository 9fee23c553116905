"""Continuous batching with chunked prefill: choose the tokens that the next forward pass computes.

`schedule` chooses, `postprocess` records the draws. Sequences that decode go first, with draft tokens where they pay
(drafts.py); prompts fill the rest of the token budget, the oldest first, with shorter ones beside a long one. When the
cache has no block left, a sequence is preempted: it gives its blocks back and waits again.

Shares are fair. `TokenRequest.asker` names the owner of a request, and the request. Owners are compared by the blocks
that all of their running sequences hold, and the requests of one owner by the blocks of each. That decides which
sequence is admitted next, which one is preempted, and which rows a pass leaves out. Draws depend on seed and position
alone, so neither shares nor preemptions change a token.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Final

from ..tokens import Asker, FinishReason, TokenDelta
from .drafts import Drafts, Guess
from .kv_cache import BlockCache, BlockTable
from .sampler import Draw
from .step_batch import RunningSequence, Segment, StepPlan

GUESSED: Final = 64
"""Maximum number of draft tokens of a pass: each needs a row of float32 logits, several times over."""

_REMEMBERED: Final = 1 << 14
"""Maximum number of requests whose admissions are counted; beyond it those without a waiting sequence are dropped."""


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
        vocabulary: int,
        drafts: Drafts | None = None,
    ) -> None:
        """
        Args:
            version: returns the policy version of an adapter.
            max_batch_tokens: the most tokens of a forward pass.
            max_running: the most sequences that hold blocks at once.
            context_length: the most tokens of a sequence, prompt included.
            vocabulary: number of the model's token ids.
            drafts: guesses the next tokens of sequences that decode; None disables guessing.
        """
        self._cache = cache
        self._vocabulary = vocabulary
        self._drafts = drafts or Drafts(0)
        self._version = version
        self._max_batch_tokens = max_batch_tokens
        self._max_running = max_running
        self._context_length = context_length
        self._waiting: deque[RunningSequence] = deque()
        # In the order of their admission: the last one is the youngest.
        self._running: list[RunningSequence] = []
        self._admitted: Counter[Asker] = Counter()
        """Admissions of each request."""
        # Adapters by their last turn, the latest at the end.
        self._turns: list[str | None] = []
        # The segment that computes each history, in the pass that is being planned.
        self._firsts: dict[tuple[int, tuple[int, ...]], Segment] = {}

    @property
    def busy(self) -> bool:
        """True if a sequence waits or runs."""
        return bool(self._waiting or self._running)

    @property
    def sequence_counts(self) -> tuple[int, int]:
        """Number of sequences that run, and that wait."""
        return len(self._running), len(self._waiting)

    def add(self, sequence: RunningSequence) -> None:
        """Put a sequence at the end of the queue."""
        self._waiting.append(sequence)

    def schedule(self) -> StepPlan | None:
        """Return the next forward pass; None when there is nothing to compute."""
        self._drop_cancelled()
        self._make_way()
        for adapter in self._adapters_in_turn():
            plan = self._plan(adapter)
            if plan is not None:
                self._turns = [*(other for other in self._turns if other != adapter), adapter]
                return plan
        return None

    def _plan(self, adapter: str | None) -> StepPlan | None:
        """Return the next forward pass with `adapter`; None if none of its sequences can run now."""
        self._firsts.clear()
        # Decoding first: a long prompt must not delay running answers.
        decode = self._decodes(adapter)
        budget = self._max_batch_tokens - sum(segment.cost for segment in decode)
        prefill: list[Segment] = []
        begun = [sequence for sequence in self._running if sequence.request.adapter == adapter and sequence.left > 1]
        kept, most = 0, math.inf
        if begun:
            # Shorter prompts may take up to half of the pass beside a prompt that needs further passes.
            left = begun[0].left
            kept, most = (left, most) if left <= budget else (budget - budget // 2, left)
        for sequence in sorted(begun[1:], key=lambda sequence: sequence.left):
            if budget > kept:
                budget -= self._take(sequence, budget - kept, prefill)
        while budget > kept and len(self._running) < self._max_running:
            waiting = self._next(most)
            # The queue stops at the first sequence that finds no room: overtaking would starve a long prompt.
            if waiting is None or waiting.request.adapter != adapter or not self._admit(waiting):
                break
            # If all but one token are cached, the sequence decodes at once.
            budget -= self._take(waiting, budget - kept, decode if waiting.left == 1 else prefill)
        if begun and budget > 0:
            self._take(begun[0], budget, prefill)
        return StepPlan(adapter, prefill, decode) if prefill or decode else None

    def postprocess(self, plan: StepPlan, drawing: Sequence[Segment], draws: Sequence[Sequence[Draw]]) -> int:
        """Record one forward pass; return the number of tokens that it added to sequences.

        Args:
            draws: for each segment in `drawing` the tokens drawn after its last token and after each draft token.
        """
        for segment in (*plan.prefill, *plan.decode):
            segment.sequence.computed += segment.count
        before = sum(len(segment.sequence.tokens) for segment in drawing)
        for segment, drawn in zip(drawing, draws, strict=True):
            sequence = segment.sequence
            sequence.version = self._version(sequence.request.adapter)
            reason = self._take_draws(segment, drawn)
            if reason is not None:
                self._release(sequence)
            if reason is not None or sequence.request.delivery != "whole":
                self._deliver(sequence, reason)
        return sum(len(segment.sequence.tokens) for segment in drawing) - before

    def _take_draws(self, segment: Segment, drawn: Sequence[Draw]) -> FinishReason | None:
        """Append the draws up to the first wrong guess; return the finish reason if the sequence ends."""
        sequence, right = segment.sequence, 0
        sampling = sequence.request.sampling
        reason: FinishReason | None = None
        for draw, guessed in zip(drawn, (*segment.guessed, None), strict=True):
            sequence.tokens.append(draw.token)
            if sequence.counts is not None:
                sequence.counts.add(draw.token)
            if sequence.constraint is not None:
                sequence.constraint.advance(draw.token)
            sequence.undelivered.append(draw)
            if draw.token in sampling.stop_token_ids:
                reason = "stop"
            elif len(sequence.tokens) >= self._context_length or sequence.position >= sampling.max_tokens:
                reason = "length"
            if draw.token != guessed or reason is not None:
                break
            right += 1
        # The keys of accepted draft tokens are valid; those of rejected ones are overwritten.
        sequence.computed += right
        if segment.guess is not None and segment.twin is None and reason is None:
            self._drafts.observe(segment.guess, right)
        return reason

    def weights_changed(self, adapter: str) -> None:
        """Recompute the keys of the running sequences of `adapter` with the new weights."""
        self._start_over([s for s in self._running if s.request.adapter == adapter])
        self._cache.forget(adapter)

    def forget_keys(self) -> None:
        """Recompute the keys of all running sequences: the cache is about to be emptied."""
        self._start_over(list(self._running))
        self._cache.clear()

    def fail_all(self) -> list[RunningSequence]:
        """Drop all sequences after an error in the forward pass, and return them."""
        dropped = [*self._running, *self._waiting]
        for sequence in self._running:
            self._cache.close(sequence.table)
        self._running.clear()
        self._waiting.clear()
        return dropped

    def _make_way(self) -> None:
        """Admit waiting sequences that find no room, by preempting owners that hold much more."""
        while (sequence := self._next()) is not None:
            preempted: RunningSequence | None = None
            while (shortage := self._shortage(sequence)) is not None:
                preempted = greediest(self._running, self._waiting, sequence, *shortage)
                if preempted is None:
                    return
                self._preempt(preempted)
            if preempted is None:  # there is room
                return
            self._admit(sequence)

    def _next(self, most: float = math.inf) -> RunningSequence | None:
        """Return the waiting sequence of fewer than `most` tokens whose owner holds the fewest blocks; among equals the
        one whose request has had the fewest sequences admitted, then the first."""
        owners, requests = (_held(self._running, blocks_of, level) for level in (1, 2))

        def held(sequence: RunningSequence) -> tuple[int, int, int]:
            asker = sequence.request.asker
            return owners[asker[:1]], requests[asker], self._admitted[asker]

        return min((sequence for sequence in self._waiting if sequence.left < most), key=held, default=None)

    def _shortage(self, sequence: RunningSequence) -> tuple[Callable[[RunningSequence], int], int] | None:
        """Return the resource that a waiting sequence lacks: what a sequence holds of it, and the amount needed."""
        if len(self._running) >= self._max_running:
            return lambda _: 1, 1
        table = self._open(sequence)
        missing = self._cache.blocks_for(len(sequence.tokens)) - len(table.blocks)
        enough = missing <= self._cache.available
        self._cache.close(table)
        return None if enough else (blocks_of, self._cache.blocks_for(len(sequence.tokens)))

    def _decodes(self, adapter: str | None) -> list[Segment]:
        ready: list[RunningSequence] = []
        for sequence in list(self._running):
            # It may have been preempted for an earlier one of this loop.
            if sequence not in self._running or sequence.request.adapter != adapter:
                continue
            if sequence.left != 1:
                continue
            while not self._cache.grow(sequence.table, len(sequence.tokens)):
                youngest = self._running[-1]
                if youngest is sequence and len(self._running) == 1:
                    # The cache is too small for it alone: it ends with the reason "length".
                    self._release(sequence)
                    self._deliver(sequence, "length")
                    break
                gone = greediest(self._running, self._waiting, youngest, blocks_of, 0) or youngest
                self._preempt(gone)
                ready = [other for other in ready if other is not gone]
                if gone is sequence:
                    break
            else:
                ready.append(sequence)
        ready = rows_in_turn(ready, self._running, self._drafts.cost.share_of_row)
        guesses = self._guesses(ready)
        # Only now is it certain that none of these is preempted, so that their published blocks are computed.
        return [self._segment(sequence, 1, guess) for sequence, guess in zip(ready, guesses, strict=True)]

    def _guesses(self, ready: Sequence[RunningSequence]) -> list[Guess | None]:
        """Return draft tokens for each sequence: those that its grammar determines, else a guess."""
        budget = min(self._max_batch_tokens - len(ready), GUESSED)
        certain: dict[RunningSequence, Guess] = {}
        for sequence in ready:
            if sequence.constraint is not None:
                # Without the last of them, after which a token is drawn.
                tokens = tuple(sequence.constraint.certain(self._vocabulary))[:-1]
                certain[sequence] = Guess(tokens, 0).first(min(budget, self._room(sequence)))
                budget -= len(certain[sequence].tokens)
        rooms = [0 if sequence in certain else self._room(sequence) for sequence in ready]
        guessed = self._drafts.guess([sequence.indexed for sequence in ready], rooms, budget)
        return [certain.get(sequence, guess) for sequence, guess in zip(ready, guessed, strict=True)]

    def _room(self, sequence: RunningSequence) -> int:
        """Return the maximum number of draft tokens: one less than the tokens that the sequence may still get."""
        left = sequence.request.sampling.max_tokens - sequence.position
        return min(left, self._context_length - len(sequence.tokens)) - 1

    def _take(self, sequence: RunningSequence, budget: int, segments: list[Segment]) -> int:
        """Append as much of `sequence` as the budget allows; return the number of tokens that this costs."""
        segment = self._segment(sequence, min(budget, sequence.left))
        segments.append(segment)
        return segment.cost

    def _segment(self, sequence: RunningSequence, count: int, guess: Guess | None = None) -> Segment:
        """Return the next `count` tokens as a segment, with its full blocks published.

        The prefix-tree node of the last full block and the tokens after that block identify a history. Segments of the
        same pass with the same history compute the same, and share their draft tokens.
        """
        table, stop = sequence.table, sequence.computed + count
        self._cache.publish(table, sequence.tokens, stop)
        history = (table.node, tuple(sequence.tokens[table.published * self._cache.block_size : stop]))
        first = self._firsts.get(history)
        # The twin has to compute all of these tokens, so it must not begin later.
        if first is not None and first.start <= sequence.computed:
            shared = first.guess
            if shared is not None and sequence.constraint is not None:  # its own grammar limits it
                own = () if guess is None else guess.tokens
                equal = takewhile(lambda pair: pair[0] == pair[1], zip(own, shared.tokens, strict=False))
                shared = Guess(tuple(token for token, _ in equal), 0)
            return Segment(sequence, count, first, self._with_room(sequence, shared))
        segment = Segment(sequence, count, guess=self._with_room(sequence, guess))
        self._firsts[history] = segment
        return segment

    def _with_room(self, sequence: RunningSequence, guess: Guess | None) -> Guess | None:
        """Return the part of `guess` that the sequence has room for; None if the cache has no block for it."""
        if guess is None:
            return None
        guess = guess.first(self._room(sequence))
        # Nothing is preempted for a guess.
        fits = guess.tokens and self._cache.grow(sequence.table, len(sequence.tokens) + len(guess.tokens))
        return guess if fits else None

    def _open(self, sequence: RunningSequence) -> BlockTable:
        adapter = sequence.request.adapter
        return self._cache.open((adapter or "", self._version(adapter)), sequence.tokens)

    def _admit(self, sequence: RunningSequence) -> bool:
        """Admit a waiting sequence, with blocks for all of its tokens; return False without enough blocks."""
        table = self._open(sequence)
        if not self._cache.grow(table, len(sequence.tokens)):
            self._cache.close(table)
            return False
        sequence.table = table
        sequence.computed = table.published * self._cache.block_size
        if sequence.cached is None:
            sequence.cached = sequence.computed
        self._waiting.remove(sequence)
        self._running.append(sequence)
        self._admitted[sequence.request.asker] += 1
        if len(self._admitted) > _REMEMBERED:
            self._admitted = Counter(
                {sequence.request.asker: self._admitted[sequence.request.asker] for sequence in self._waiting}
            )
        return True

    def _adapters_in_turn(self) -> list[str | None]:
        """Return the adapters with work, the least recently used first, so that all take turns.

        All are returned, because the sequences of a waiting adapter may find no room while another one runs.
        """
        adapters = [s.request.adapter for s in self._running]
        first = self._next()
        if first is not None:
            adapters.append(first.request.adapter)
        turns = self._turns
        return sorted(dict.fromkeys(adapters), key=lambda adapter: turns.index(adapter) if adapter in turns else -1)

    def _drop_cancelled(self) -> None:
        for sequence in [s for s in self._running if s.cancelled]:
            self._release(sequence)
            self._deliver(sequence, "cancelled")
        for sequence in [s for s in self._waiting if s.cancelled]:
            self._waiting.remove(sequence)
            self._deliver(sequence, "cancelled")

    def _deliver(self, sequence: RunningSequence, reason: FinishReason | None) -> None:
        """Deliver the draws that are not delivered yet."""
        draws, sequence.undelivered = sequence.undelivered, []
        first = len(draws) == sequence.position
        sequence.deliver(
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
        # Each is put to the front of the queue, so the last one first: their order stays.
        for sequence in reversed(sequences):
            self._preempt(sequence)
            # Draws of the old weights must not be reported under the new version.
            if sequence.undelivered:
                self._deliver(sequence, None)

    def _preempt(self, sequence: RunningSequence) -> None:
        self._release(sequence)
        sequence.computed = 0
        self._waiting.appendleft(sequence)


_SEVERAL: Final = 2
"""An owner of several sequences loses one if it holds at least this many times what the newcomer would hold. A factor
above 1 keeps two equal owners from preempting each other in turn."""
_ONE: Final = 8
"""The same factor for an owner of one sequence, which has to be computed again from its beginning."""


def blocks_of(sequence: RunningSequence) -> int:
    """Return the number of cache blocks that a running sequence holds."""
    return len(sequence.table.blocks)


def greediest(
    running: Sequence[RunningSequence],
    waiting: Iterable[RunningSequence],
    beside: RunningSequence,
    amount: Callable[[RunningSequence], int],
    more: int,
) -> RunningSequence | None:
    """Return the youngest sequence of the owner, or request, that holds the most; None if none holds much more than
    that of `beside` would.

    Args:
        running: sequences that hold something, the oldest first.
        waiting: sequences that hold nothing.
        beside: the sequence to compare with.
        amount: returns what a running sequence holds.
        more: what `beside` would hold besides what its owner, or its request, holds now. With 0, an owner of several
            sequences only has to hold more.
    """
    for level in (1, 2):
        held, own = _held(running, amount, level), beside.request.asker[:level]
        most = max(held, key=held.__getitem__, default=own)
        several = sum(sequence.request.asker[:level] == most for sequence in (*running, *waiting)) > 1
        least = (_SEVERAL if several else _ONE) * (held[own] + more)
        if most != own and (held[most] >= least or (several and not more and held[most] > held[own])):
            running = [sequence for sequence in running if sequence.request.asker[:level] == most]
            requests = _held(running, amount, 2)
            request = max(requests, key=requests.__getitem__)
            return [sequence for sequence in running if sequence.request.asker == request][-1]
        running = [sequence for sequence in running if sequence.request.asker[:level] == own]
    return None


def rows_in_turn(
    ready: list[RunningSequence], running: Sequence[RunningSequence], share_of_row: Callable[[int], float | None]
) -> list[RunningSequence]:
    """Return the sequences that a pass computes of those that could decode.

    All sequences of the owner with the fewest are computed, and as many of each other owner. More are computed as long
    as the pass takes at most twice as long with them.

    Args:
        ready: sequences that could decode, the oldest first.
        running: all sequences that run.
        share_of_row: returns the share of a pass's time that one of its rows takes; None while it is not known.
    """
    level = 1 if len({sequence.request.asker[0] for sequence in running}) > 1 else 2
    rows = _held(running, lambda _: 1, level)
    if len(rows) < 2:
        return ready
    equal = min(rows.values()) * len({sequence.request.asker[:level] for sequence in ready})
    share = share_of_row(equal)
    most = math.inf if not share else equal + 1 / share
    if len(ready) <= most:
        return ready
    kept = set(_by_turns(_by_turns(ready, 2), 1)[: int(most)])
    return [sequence for sequence in ready if sequence in kept]


def _held(
    sequences: Iterable[RunningSequence], amount: Callable[[RunningSequence], int], level: int
) -> Counter[object]:
    """Return what each owner (level 1), or each request (level 2), holds."""
    held: Counter[object] = Counter()
    for sequence in sequences:
        held[sequence.request.asker[:level]] += amount(sequence)
    return held


def _by_turns(sequences: Sequence[RunningSequence], level: int) -> list[RunningSequence]:
    """Return the first sequence of each owner or request, then the second of each, and so on."""
    seen: Counter[object] = Counter()
    turn: dict[RunningSequence, int] = {}
    for sequence in sequences:
        turn[sequence] = seen[sequence.request.asker[:level]]
        seen[sequence.request.asker[:level]] += 1
    return sorted(sequences, key=turn.__getitem__)
