"""The engine: requests of token ids in, sampled tokens and their log-probabilities out, no text.

Requests are submitted from any thread. Forward passes run on the torch thread, and so does each request's `on_delta`
callback, which receives the tokens.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress, islice

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..tokens import ConstraintError, TokenDelta, TokenRequest
from . import kernels
from .drafts import Drafts
from .errors import CacheFullError, PolicyError, PromptTooLongError, QueueFullError
from .kv_cache import BlockCache, KVPool
from .machine import on_device
from .model import PolicyModel
from .sampler import Draw, Row, fit_mask, one_token, sample
from .scheduler import GUESSED, Scheduler
from .settings import EngineSettings
from .static_decoding import CudaGraphs, DecodeRunner
from .step_batch import Places, RunningSequence, Segment, StepPlan, pack_step
from .torch_thread import TorchThread

logger = logging.getLogger(__name__)


@dataclass
class EngineCounters:
    """Totals since the engine was created."""

    sampled_tokens: int = 0
    computed_tokens: int = 0
    """Tokens that the model computed: uncached prompt tokens, one for each distinct history that decodes, and draft
    tokens."""
    guessed_tokens: int = 0
    """Draft tokens."""
    passes: int = 0
    """Forward passes."""


class Engine:
    """Continuous batching over a shared-prefix block cache."""

    def __init__(
        self,
        model: PolicyModel,
        thread: TorchThread,
        settings: EngineSettings | None = None,
        recorder: CudaGraphs | None = None,
    ) -> None:
        """
        Args:
            recorder: records decode steps; None takes CUDA graphs on a CUDA device, where the settings allow them.
        """
        self._model = model
        self._thread = thread
        self.settings = settings or EngineSettings()
        size = self.settings.block_size
        element = torch.empty(0, dtype=model.dtype).element_size()
        # Keys and values, hence 2.
        block_bytes = 2 * model.layers * size * model.kv_heads * model.head_size * element
        blocks = max(1, self.settings.cache_mib * 2**20 // block_bytes)
        self._pool = KVPool(model.layers, blocks, size, model.kv_heads, model.head_size, model.dtype, model.device)
        self.cache = BlockCache(blocks, size, share=not self.settings.deterministic)
        # Compile the kernels before the first request.
        kernels.can_draw(torch.empty(0, dtype=model.dtype, device=model.device))
        self._drafts = Drafts(0 if self.settings.deterministic else self.settings.max_draft_tokens)
        self._scheduler = Scheduler(
            self.cache,
            model.version,
            max_batch_tokens=self.settings.max_batch_tokens,
            max_running=1 if self.settings.deterministic else self.settings.max_running,
            context_length=model.context_length,
            vocabulary=model.vocab_size,
            drafts=self._drafts,
        )
        if self.settings.deterministic:
            model.threads.fix()
        elif recorder is None and self.settings.cuda_graphs and model.device.type == "cuda":
            recorder = CudaGraphs(model.device)
        self.decoding: DecodeRunner | None = None
        """Runs recorded decode steps; None without recording."""
        if recorder is not None:
            most_rows = max(self.settings.max_running, self.settings.max_batch_tokens) + GUESSED
            self.decoding = DecodeRunner(model, self._pool, recorder, block_size=size, most_rows=most_rows)
        self.counters = EngineCounters()
        self.weight_changes: Counter[str] = Counter()
        """Number of times that the weights of each adapter have changed."""
        self._inbox: list[RunningSequence] = []
        self._inbox_lock = threading.Lock()
        self._abandoned = False
        thread.attend(self)

    def submit(self, request: TokenRequest, on_delta: Callable[[TokenDelta], None]) -> RunningSequence:
        """Queue a request. The last delta has a `finish_reason`.

        Raises:
            QueueFullError: too many requests wait already.
            PolicyError: the policy is closed, or `checked` refuses the request.
        """
        return self.queue(self.checked(request, on_delta))

    def checked(self, request: TokenRequest, on_delta: Callable[[TokenDelta], None]) -> RunningSequence:
        """Check a request, and return it as a sequence to `queue`.

        Raises:
            PromptTooLongError: the prompt fills the context.
            CacheFullError: the prompt alone needs more blocks than the cache has.
            PolicyError: the prompt is empty, holds an unknown token id or names an unknown adapter; or the base is
                sharded over ranks.
        """
        if self._model.shards is not None:
            raise PolicyError("ranks that hold a part of the base each do not sample", setting="shard")
        prompt = request.prompt_ids
        if not prompt:
            raise PolicyError("the prompt is empty")
        if min(prompt) < 0 or max(prompt) >= self._model.vocab_size:
            raise PolicyError(f"the prompt holds a token id outside 0..{self._model.vocab_size - 1}")
        bias = request.sampling.logit_bias
        if bias and not 0 <= min(bias) <= max(bias) < self._model.vocab_size:
            raise PolicyError(f"logit_bias holds a token id outside 0..{self._model.vocab_size - 1}")
        if request.adapter is not None and request.adapter not in self._model.versions:
            raise PolicyError(f"no adapter named {request.adapter!r}")
        if len(prompt) >= self._model.context_length:
            raise PromptTooLongError(len(prompt), self._model.context_length)
        if self.cache.blocks_for(len(prompt) + 1) > self.cache.total:
            raise CacheFullError(
                f"the prompt has {len(prompt)} tokens, but the key/value cache holds "
                f"{self.cache.total * self.cache.block_size}; raise `cache_mib`"
            )
        seed = secrets.randbits(63) if request.sampling.seed is None else request.sampling.seed
        constraint = None if request.constraint is None else request.constraint()
        return RunningSequence(request, seed, on_delta, list(prompt), constraint)

    def queue(self, sequence: RunningSequence) -> RunningSequence:
        """Queue a checked request.

        Raises:
            QueueFullError: too many requests wait already.
            PolicyError: the policy is closed.
        """
        # The scheduler belongs to the torch thread, which takes requests from this list.
        with self._inbox_lock:
            if self._abandoned:
                raise PolicyError("the policy is closed, or its engine has failed (see the log)")
            if self.sequence_counts[1] >= self.settings.max_waiting:
                raise QueueFullError(f"{self.settings.max_waiting} requests wait already (`max_waiting`)")
            self._inbox.append(sequence)
        self._thread.wake()
        return sequence

    def cancel(self, sequence: RunningSequence) -> None:
        """End a request early; its blocks are freed at the next step. Does nothing when it has finished."""
        sequence.cancelled = True
        self._thread.wake()

    def weights_changed(self, adapter: str) -> None:
        """Invalidate every cached key of `adapter`. On the torch thread, after its version was raised."""
        self.weight_changes[adapter] += 1
        self._scheduler.weights_changed(adapter)
        if self.decoding is not None:
            self.decoding.weights_changed()

    def release_cache(self) -> bool:
        """Free the cache's memory until the next forward pass; running sequences then recompute their keys.

        With recorded decode steps the memory stays, and only its contents are invalidated. On the torch thread.

        Returns:
            True if the cache held memory: there was a forward pass since the last call.
        """
        held = self._pool.allocated
        self._scheduler.forget_keys()
        if self.decoding is None or not self.decoding.holds_recordings:
            self._pool.release()
        return held

    @property
    def sampled_tokens(self) -> int:
        """Tokens sampled so far, on all ranks."""
        return self.counters.sampled_tokens

    @property
    def sequence_counts(self) -> tuple[int, int]:
        """Number of sequences that run, and that wait."""
        running, waiting = self._scheduler.sequence_counts
        return running, waiting + len(self._inbox)

    def pending(self) -> bool:
        """Return True if there is something to compute; quick, as the torch thread calls it under its lock."""
        return bool(self._inbox) or self._scheduler.busy

    def step(self) -> None:
        """Compute one forward pass. A failing one ends the requests under way, not the engine."""
        self._take_inbox()
        try:
            self._forward_pass()
        except Exception as error:  # any error would end the thread that all requests wait for
            logger.exception("a forward pass failed (%s); its requests are cancelled", error)
            self._drop_all()
            self.cache.drop_idle()

    def abandon(self) -> None:
        """Cancel every request, and refuse those to come."""
        with self._inbox_lock:
            self._abandoned = True
        self._take_inbox()
        self._drop_all()

    def _take_inbox(self) -> None:
        with self._inbox_lock:
            arrived, self._inbox = self._inbox, []
        for sequence in arrived:
            self._scheduler.add(sequence)

    def _drop_all(self) -> None:
        for sequence in self._scheduler.fail_all():
            sequence.deliver(TokenDelta(finish_reason="cancelled"))

    @torch.inference_mode()
    def _forward_pass(self) -> None:
        self._model.threads.adapt()
        began = time.perf_counter()
        plan = self._scheduler.schedule()
        if plan is None:
            return
        drawing = [segment for segment in (*plan.prefill, *plan.decode) if segment.draws]
        # The learner's turn may have freed the memory, and left the model in training mode.
        self._pool.allocate()
        if self._model.base.training:
            self._model.base.eval()
        self._model.activate_for_sampling(plan.adapter, at_once=self.settings.deterministic)
        hidden, places = self._compute(plan)
        # Grammars compute their masks while a GPU computes the pass.
        drawing, rows = self._rows(drawing)
        draws = self._draw(hidden, places, drawing, rows) if drawing else []
        drawing, draws = self._finite(drawing, draws)
        self.counters.sampled_tokens += self._scheduler.postprocess(plan, drawing, draws)
        self.counters.computed_tokens += places.count
        self.counters.guessed_tokens += sum(len(segment.guessed) for segment in plan.decode if segment.twin is None)
        self.counters.passes += 1
        if not plan.prefill and (self.decoding is None or self.decoding.settled):
            self._drafts.cost.observe(places.count, time.perf_counter() - began)

    def _compute(self, plan: StepPlan) -> tuple[Tensor, Places]:
        """Return the hidden states of a pass, and the places of its tokens in them."""
        computed = None if self.decoding is None else self.decoding.run(plan)
        if computed is not None:
            return computed
        batch = pack_step(plan, self._pool, self.settings.block_size)
        return self._model.hidden(batch.tokens_T, batch.positions_T, batch.tables), batch.places

    def _rows(self, drawing: list[Segment]) -> tuple[list[Segment], list[Row]]:
        """Return the segments to draw for and a row for each draw; cancel sequences whose constraint allows nothing."""
        kept: list[Segment] = []
        rows: list[Row] = []
        for segment in drawing:
            sequence = segment.sequence
            try:
                masks = self._masks(segment)
            except ConstraintError as error:
                sequence.failure, sequence.cancelled = str(error), True
                continue
            kept.append(segment)
            for ahead, allowed in enumerate(masks):
                before = segment.guessed[:ahead]
                position = sequence.position + ahead
                rows.append(Row(sequence.request.sampling, sequence.seed, position, sequence.counts, before, allowed))
        return kept, rows

    def _finite(self, drawing: list[Segment], draws: list[list[Draw]]) -> tuple[list[Segment], list[list[Draw]]]:
        """Return the draws with finite log-probabilities and their segments; cancel the sequences of the others."""
        finite = [all(math.isfinite(draw.logprob) for draw in drawn) for drawn in draws]
        if all(finite):
            return drawing, draws
        for segment, is_finite in zip(drawing, finite, strict=True):
            segment.sequence.cancelled |= not is_finite
        logger.error(
            "the model gave no probabilities (NaN or infinity) to %d of %d answers, which are cancelled: are its "
            "weights damaged?",
            finite.count(False),
            len(finite),
        )
        return list(compress(drawing, finite)), list(compress(draws, finite))

    def _masks(self, segment: Segment) -> Sequence[npt.NDArray[np.int32] | None]:
        """Return the mask of each draw of a segment; a token that the grammar determines is the only one allowed."""
        constraint, vocabulary = segment.sequence.constraint, self._model.vocab_size
        if constraint is None:
            return [None] * (1 + len(segment.guessed))
        if not segment.guessed:
            return [fit_mask(constraint.allowed(vocabulary), vocabulary)]
        return [one_token(id_, vocabulary) for id_ in constraint.certain(vocabulary)[: 1 + len(segment.guessed)]]

    def _draw(self, hidden_TM: Tensor, places: Places, drawing: list[Segment], rows: list[Row]) -> list[list[Draw]]:
        """Draw the tokens of each segment; the head computes each distinct history once."""
        each = [places.drawing(segment) for segment in drawing]
        last = [index for indices in each for index in indices]
        row_of = {index: row for row, index in enumerate(dict.fromkeys(last))}
        logits = self._model.logits(hidden_TM[on_device(np.array(list(row_of), np.int64), hidden_TM.device)])
        draws = iter(sample(logits, rows, [row_of[index] for index in last]))
        return [list(islice(draws, len(indices))) for indices in each]
