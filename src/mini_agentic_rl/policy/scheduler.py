"""Which tokens the next forward pass computes: continuous batching with chunked prefill.

`schedule` picks, `postprocess` books what was drawn. Sequences that decode go first, waiting prompts fill the rest of
the token budget, the oldest first. When blocks run out the youngest sequence gives its own back and waits again; its
draws depend on seed and position only, so it goes on as if nothing had happened.
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
    """One request on its way."""

    request: TokenRequest
    seed: int
    on_delta: Callable[[TokenDelta], None]
    tokens: list[int]
    """Prompt and what was sampled so far."""
    constraint: TokenConstraint | None = None
    """Follows the sampled tokens; like them it outlives the loss of the blocks."""
    table: BlockTable = field(default_factory=BlockTable)
    computed: int = 0
    """How many of `tokens` have their keys in the cache."""
    cached: int | None = None
    """Prompt tokens found in the prefix cache at first admission."""
    cancelled: bool = False
    failure: str = ""
    """Why it was cancelled, where its constraint could not be obeyed."""
    undelivered: list[Draw] = field(default_factory=list)
    """Draws that `on_delta` has not been told of."""
    version: int = 0
    """Policy version of the last draw."""

    @property
    def sampled(self) -> Sequence[int]:
        return self.tokens[len(self.request.prompt_ids) :]


@dataclass(frozen=True, eq=False)
class Piece:
    """`count` new tokens of one sequence, from its `computed` on."""

    sequence: RunningSequence
    count: int
    twin: Piece | None = None
    """A piece of the same forward pass that computes these very tokens after the very same history: its keys and
    hidden states serve here too, so nothing is computed for this one."""

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
        """Whether the last of these tokens is the last there is, so that the next one is drawn."""
        return self.stop == len(self.sequence.tokens)


@dataclass(frozen=True)
class StepPlan:
    """One forward pass: all pieces share an adapter."""

    adapter: str | None
    prefill: list[Piece]
    decode: list[Piece]


class Scheduler:
    """Holds the waiting and the running sequences. Not thread-safe: the engine's thread owns it."""

    def __init__(
        self,
        cache: BlockCache,
        version: Callable[[str | None], int],
        *,
        max_batch_tokens: int,
        max_running: int,
        context_length: int,
    ) -> None:
        self._cache = cache
        self._version = version
        self._max_batch_tokens = max_batch_tokens
        self._max_running = max_running
        self._context_length = context_length
        self._waiting: deque[RunningSequence] = deque()
        self._running: list[RunningSequence] = []
        self._last_adapter: str | None = None
        # Of the pass being planned: the piece that computes each history.
        self._firsts: dict[tuple[int, tuple[int, ...]], Piece] = {}

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._running)

    @property
    def load(self) -> tuple[int, int]:
        """How many sequences run and wait."""
        return len(self._running), len(self._waiting)

    def add(self, sequence: RunningSequence) -> None:
        self._waiting.append(sequence)

    def schedule(self) -> StepPlan | None:
        """The next forward pass; None when there is nothing to compute."""
        self._drop_cancelled()
        for adapter in self._adapters_in_turn():
            plan = self._plan(adapter)
            if plan is not None:
                self._last_adapter = adapter
                return plan
        return None

    def _plan(self, adapter: str | None) -> StepPlan | None:
        """The next forward pass with `adapter`; None where none of its sequences can go on now."""
        self._firsts.clear()
        decode = self._decodes(adapter)
        budget = self._max_batch_tokens - sum(piece.twin is None for piece in decode)
        prefill: list[Piece] = []
        for sequence in self._running:
            if budget > 0 and sequence.request.adapter == adapter and len(sequence.tokens) - sequence.computed > 1:
                budget -= self._take(sequence, budget, prefill)
        while budget > 0 and self._waiting and len(self._running) < self._max_running:
            sequence = self._waiting[0]
            if sequence.request.adapter != adapter or not self._admit(sequence):
                break
            self._waiting.popleft()
            self._running.append(sequence)
            one_token = len(sequence.tokens) - sequence.computed == 1
            budget -= self._take(sequence, budget, decode if one_token else prefill)
        return StepPlan(adapter, prefill, decode) if prefill or decode else None

    def postprocess(self, plan: StepPlan, drawing: Sequence[Piece], draws: Sequence[Draw]) -> None:
        """Book one forward pass: `draws` are the tokens drawn for the pieces in `drawing`."""
        for piece in (*plan.prefill, *plan.decode):
            piece.sequence.computed += piece.count
        for piece, draw in zip(drawing, draws, strict=True):
            sequence = piece.sequence
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
        """The keys of this adapter's running sequences are stale: compute them again with the new weights."""
        self._start_over([s for s in self._running if s.request.adapter == adapter])
        self._cache.forget(adapter)

    def forget_keys(self) -> None:
        """No key is there any more: compute those of the running sequences again."""
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

    def _decodes(self, adapter: str | None) -> list[Piece]:
        ready: list[RunningSequence] = []
        for sequence in list(self._running):
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
        # Only now is it sure that these will be computed, and a published block must be.
        return [self._piece(sequence, 1) for sequence in ready]

    def _take(self, sequence: RunningSequence, budget: int, pieces: list[Piece]) -> int:
        """Append as much of `sequence` as the budget allows; how many tokens that costs."""
        piece = self._piece(sequence, min(budget, len(sequence.tokens) - sequence.computed))
        pieces.append(piece)
        return piece.count if piece.twin is None else 0

    def _piece(self, sequence: RunningSequence, count: int) -> Piece:
        """The piece, its full blocks published. The node of its last block and the tokens after that block are its
        history, so a piece of the same step with both alike computes the same."""
        table, stop = sequence.table, sequence.computed + count
        self._cache.publish(table, sequence.tokens, stop)
        history = (table.node, tuple(sequence.tokens[table.published * self._cache.block_size : stop]))
        first = self._firsts.get(history)
        if first is not None and first.start <= sequence.computed:
            return Piece(sequence, count, first)
        piece = Piece(sequence, count)
        self._firsts[history] = piece
        return piece

    def _admit(self, sequence: RunningSequence) -> bool:
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
        """Those in line, the last one served at the end: a waiting one may find no room while another runs."""
        adapters = [s.request.adapter for s in self._running]
        if self._waiting:
            adapters.append(self._waiting[0].request.adapter)
        return sorted(dict.fromkeys(adapters), key=lambda adapter: adapter == self._last_adapter)

    def _finish_reason(self, sequence: RunningSequence, token: int) -> FinishReason | None:
        if token in sequence.request.sampling.stop_token_ids:
            return "stop"
        full = len(sequence.tokens) >= self._context_length
        if full or len(sequence.sampled) >= sequence.request.sampling.max_tokens:
            return "length"
        return None

    def _finish_early(self, sequence: RunningSequence) -> None:
        """The cache is too small for even this one alone: it ends here, as if at its length bound."""
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
        """Tell of the draws that were not told of yet."""
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
        for sequence in reversed(sequences):
            self._preempt(sequence)
            if sequence.undelivered:
                self._deliver(sequence, None)

    def _preempt(self, sequence: RunningSequence) -> None:
        self._release(sequence)
        sequence.computed = 0
        self._waiting.appendleft(sequence)
