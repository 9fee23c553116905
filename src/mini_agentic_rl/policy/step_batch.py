"""One forward pass of the engine: its sequences, its plan, and the plan as tensors.

Packed order: prefill chunks first, then the rows of the decoding sequences, one for each last token and for each draft
token after it, as if each were a sequence that ends there. A segment with a twin adds no token: its cache slots get
copies of its twin's keys and values, and its draws use its twin's hidden states.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..tokens import TokenConstraint, TokenDelta, TokenRequest
from .drafts import Guess, Indexed
from .kv_cache import BlockTable, KVPool
from .machine import on_device
from .sampler import Draw, TokenCounts
from .sampling_attention import Chunk, DecodeTables, PagedTables, SharedKeys, shared_runs

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
    """Grammar, in its state after the sampled tokens."""
    table: BlockTable = field(default_factory=BlockTable)
    computed: int = 0
    """Number of `tokens` whose keys are in the cache."""
    cached: int | None = None
    """Prompt tokens found in the prefix cache at first admission."""
    cancelled: bool = False
    """Set by any thread; the scheduler drops the sequence before its next pass."""
    failure: str = ""
    """Reason of the cancellation, if no token obeys the constraint."""
    undelivered: list[Draw] = field(default_factory=list)
    """Draws that are not delivered to `on_delta` yet."""
    version: int = 0
    """Policy version of the last draw."""
    counts: TokenCounts | None = None
    """Number of times that each token was sampled; only under penalties."""

    def __post_init__(self) -> None:
        self.indexed = Indexed(self.tokens)
        """Entry in the n-gram table (drafts.py)."""
        sampling = self.request.sampling
        if sampling.repetition_penalty != 1:
            self.counts = TokenCounts(prompt=self.request.prompt_ids)
        elif sampling.presence_penalty or sampling.frequency_penalty:
            self.counts = TokenCounts()

    def deliver(self, delta: TokenDelta) -> None:
        """Call `on_delta`. A callback that raises ends its own request only."""
        try:
            self.on_delta(delta)
        except Exception as error:  # the callback is the caller's
            if not self.cancelled:
                logger.exception("a request is cancelled, since its callback raised: %s", error)
            self.cancelled = True

    @property
    def position(self) -> int:
        """Number of tokens sampled so far."""
        return len(self.tokens) - len(self.request.prompt_ids)

    @property
    def left(self) -> int:
        """Number of tokens that are still to compute; a decoding sequence has one."""
        return len(self.tokens) - self.computed


@dataclass(frozen=True, eq=False)
class Segment:
    """`count` new tokens of one sequence in one forward pass, from its `computed` on."""

    sequence: RunningSequence
    count: int
    twin: Segment | None = None
    """Segment of the same pass with the same tokens after the same history. Its keys and hidden states are reused, so
    nothing is computed for this segment."""
    guess: Guess | None = None
    """Draft tokens, computed after those of the segment."""

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
        """Draft tokens, from position `stop` on."""
        return () if self.guess is None else self.guess.tokens

    @property
    def cost(self) -> int:
        """Number of tokens that the model computes for the segment."""
        return self.count + len(self.guessed) if self.twin is None else 0

    @property
    def draws(self) -> bool:
        """True if the segment reaches the last token: a token is drawn there and at each draft token."""
        return self.stop == len(self.sequence.tokens)


@dataclass(frozen=True)
class StepPlan:
    """The tokens of one forward pass; all segments use one adapter."""

    adapter: str | None
    prefill: list[Segment]
    decode: list[Segment]


@dataclass(frozen=True)
class Places:
    """Packed indices of the tokens of a pass."""

    count: int
    """Number of tokens that are computed."""
    of: Mapping[Segment, Sequence[int]]
    """Packed indices of the tokens of each computed segment, draft tokens included."""

    def drawing(self, segment: Segment) -> list[int]:
        """Return the packed indices that a segment draws from: its last token, and each draft token."""
        return [self.index(segment, segment.stop - 1 + ahead) for ahead in range(1 + len(segment.guessed))]

    def index(self, segment: Segment, position: int) -> int:
        """Return the packed index of the token at `position`; that of the segment's twin if it has one."""
        computed = segment.twin or segment
        return self.of[computed][position - computed.start]


@dataclass(frozen=True)
class StepBatch:
    """The tokens of one forward pass, their positions, and their attention."""

    tokens_T: Tensor
    positions_T: Tensor
    tables: PagedTables
    places: Places


def pack_step(plan: StepPlan, pool: KVPool, block_size: int) -> StepBatch:
    """Lay out the segments of `plan`, whose cache slots are in `pool`."""
    device = pool.device
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[np.ndarray] = []
    chunks: list[Chunk] = []
    places_of: dict[Segment, Sequence[int]] = {}
    for segment in (p for p in plan.prefill if p.twin is None):
        segment_slots = _slots(segment, block_size)
        places_of[segment] = range(len(tokens), len(tokens) + segment.count)
        tokens.extend(segment.sequence.tokens[segment.start : segment.stop])
        positions.extend(range(segment.start, segment.stop))
        slots.append(segment_slots[segment.start :])
        chunks.append(Chunk(places_of[segment][0], len(tokens), on_device(segment_slots, device)))
    # Sorted by blocks, so that rows with a common prefix are neighbours, as `shared_runs` needs.
    rows = sorted(rows_of(plan.decode), key=lambda row: (row.shareable(block_size), row.length))
    decode: DecodeTables | None = None
    if rows:
        decode, new_slots = _decode(rows, block_size, device)
        slots.append(new_slots)
        places_of.update(places_of_rows(rows, len(tokens)))
        tokens.extend(row.token for row in rows)
        positions.extend(row.length - 1 for row in rows)
    places = Places(len(tokens), places_of)
    copies = list(twin_copies(plan, places, block_size))
    slots.extend(twin_slots for twin_slots, _ in copies)
    sources = [*range(len(tokens)), *(index for _, indices in copies for index in indices)] if copies else []
    tables = PagedTables(
        pool,
        on_device(np.concatenate(slots), device),
        on_device(np.array(sources, np.int64), device) if copies else None,
        chunks,
        decode,
    )
    tokens_T, positions_T = (on_device(np.array(values, np.int64), device) for values in (tokens, positions))
    return StepBatch(tokens_T, positions_T, tables, places)


@dataclass(frozen=True)
class TokenRow:
    """A token of a segment, which sees all tokens before it."""

    segment: Segment
    ahead: int
    """Distance from the segment's last token: 0 is that token, positive a draft token, negative a token before it."""

    @property
    def length(self) -> int:
        """Number of visible tokens, itself included."""
        return self.segment.stop + self.ahead

    @property
    def token(self) -> int:
        """Its id."""
        if self.ahead > 0:
            return self.segment.guessed[self.ahead - 1]
        return self.segment.sequence.tokens[self.length - 1]

    @property
    def blocks(self) -> list[int]:
        """The blocks of its sequence."""
        return self.segment.sequence.table.blocks

    def shareable(self, block_size: int) -> list[int]:
        """Return the blocks that may be shared with other sequences: those without draft tokens."""
        return self.blocks[: (self.segment.stop - 1) // block_size]

    def slot(self, block_size: int) -> int:
        """Return the cache slot of its own keys."""
        block, offset = divmod(self.length - 1, block_size)
        return self.blocks[block] * block_size + offset


def rows_of(segments: Iterable[Segment]) -> list[TokenRow]:
    """Return a row for each token of the segments without a twin."""
    return [TokenRow(segment, ahead) for segment in segments if segment.twin is None for ahead in _places(segment)]


def places_of_rows(rows: Sequence[TokenRow], first: int) -> dict[Segment, list[int]]:
    """Return the packed indices of the rows of each segment; those of `rows` begin at `first`."""
    index = {(row.segment, row.ahead): first + number for number, row in enumerate(rows)}
    segments = [row.segment for row in rows if row.ahead == 0]
    return {segment: [index[segment, ahead] for ahead in _places(segment)] for segment in segments}


def _places(segment: Segment) -> range:
    return range(1 - segment.count, 1 + len(segment.guessed))


def twin_copies(plan: StepPlan, places: Places, block_size: int) -> Iterator[tuple[np.ndarray, list[int]]]:
    """Yield for each segment with a twin its cache slots, and the packed indices of the keys for them."""
    # Copies, because the sequences may end at different times.
    for segment in (p for p in (*plan.prefill, *plan.decode) if p.twin is not None):
        end = segment.stop + len(segment.guessed)
        indices = [places.index(segment, position) for position in range(segment.start, end)]
        yield _slots(segment, block_size)[segment.start :], indices


def _slots(segment: Segment, block_size: int) -> np.ndarray:
    """Return the cache slots of every position up to the segment's end, draft tokens included."""
    blocks = np.array(segment.sequence.table.blocks, np.int64)
    slots = (blocks[:, None] * block_size + np.arange(block_size)).reshape(-1)
    return slots[: segment.stop + len(segment.guessed)]


def _decode(rows: list[TokenRow], block_size: int, device: torch.device) -> tuple[DecodeTables, np.ndarray]:
    """Return the rows' attention tables, and the slots of their own tokens."""
    tables = [row.blocks for row in rows]
    lengths = np.array([row.length for row in rows], np.int64)
    width = max(len(table) for table in tables)
    blocks = np.zeros((len(rows), width), np.int64)
    for row, table in enumerate(tables):
        blocks[row, : len(table)] = table
    slots = (blocks[:, :, None] * block_size + np.arange(block_size)).reshape(len(rows), -1)
    # The block of the new token is being written, so it is never shared.
    runs = shared_runs([row.shareable(block_size) for row in rows], block_size)
    first = np.zeros(len(rows), np.int64)
    shared = []
    for run in runs:
        first[run.rows] = run.last * block_size
        taken = slice(run.first * block_size, run.last * block_size)
        shared.append(
            SharedKeys(
                run.rows,
                _run_of(slots[run.rows.start, taken], device),
                torch.arange(taken.start, taken.stop, device=device),
            )
        )
    # All rows have the same width: a shorter history repeats its last slot, which the mask hides.
    positions = first[:, None] + np.arange(int((lengths - first).max()))
    rest = np.take_along_axis(slots, np.minimum(positions, slots.shape[1] - 1), 1)
    decode = DecodeTables(shared, on_device(rest, device), on_device(first, device), on_device(lengths, device))
    return decode, slots[np.arange(len(rows)), lengths - 1]


def _run_of(slots: np.ndarray, device: torch.device) -> torch.Tensor | slice:
    """Return contiguous slots as a slice, which is read without a copy."""
    first, last = int(slots[0]), int(slots[-1])
    if last - first == slots.size - 1 and bool((np.diff(slots) == 1).all()):
        return slice(first, last + 1)
    return on_device(slots, device)
