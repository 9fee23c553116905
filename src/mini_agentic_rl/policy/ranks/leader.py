"""Rank 0's policy, with the interface of `Policy`: it samples and learns on all ranks.

A request is sampled by the least busy rank. A loss adds up over terms, and each term is in one share, so that
the sums of metrics and gradients equal those of a single rank. Optimizer steps sum the gradients of all ranks.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...tokens import PackedTrees, Share, TokenDelta, TokenRequest
from ..engine import Engine, EngineCounters
from ..errors import PolicyError, QueueFullError
from ..launch import Launch
from ..learner import Learner, ValueLearner
from ..loss import Loss, LossInputs, SeenTerms
from ..model import DEFAULT_ADAPTER, PolicyModel
from ..policy import Policy
from ..settings import EngineSettings, LearnerSettings, RankSettings, ValueSettings
from ..step_batch import RunningSequence
from ..torch_thread import TorchThread
from ..tree_pass import Likeliest, Scorer
from .commands import Followers
from .follower import CPU, load_on_rank, to_device
from .rendezvous import device_of, join_group, meet

T = TypeVar("T")

_MOST_ROLLOUTS: Final = 1 << 16
"""Maximum number of rollouts whose rank is remembered."""


class RankedEngine(Engine):
    """The engine of rank 0, which also sends requests to the other ranks.

    A rollout is sampled by the rank that was least busy at its first request. Draws depend on a request's seed and
    on the position alone, so that any rank draws the same tokens from the same distribution. Requests under a grammar
    stay on rank 0, as the state of a grammar cannot be sent.
    """

    def __init__(self, followers: Followers, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._followers = followers
        self._lock = threading.Lock()
        self._elsewhere: dict[int, tuple[int, RunningSequence]] = {}
        """Sequences that other ranks sample, with their rank, by id."""
        self._rank_of: dict[str, int] = {}
        """Rank of each rollout, the oldest one first."""
        followers.on_delta = self._on_delta
        followers.lost.add_done_callback(lambda lost: self._cancel_elsewhere())

    def submit(self, request: TokenRequest, on_delta: Callable[[TokenDelta], None]) -> RunningSequence:
        """Queue a request on a rank; see `Engine.submit`."""
        sequence = self.checked(request, on_delta)
        with self._lock:
            busy = Counter(rank for rank, _ in self._elsewhere.values())
            busy[0] = sum(super().sequence_counts)
            rank = min(range(self._followers.group.size), key=busy.__getitem__)
            if request.constraint is not None:
                rank = 0
            elif request.affinity:
                rank = self._rank_of.setdefault(request.affinity, rank)
                if len(self._rank_of) > _MOST_ROLLOUTS:
                    self._rank_of.pop(next(iter(self._rank_of)))
            if rank > 0:
                if busy[rank] >= self.settings.max_waiting + self.settings.max_running:
                    raise QueueFullError(f"{self.settings.max_waiting} requests wait already (`max_waiting`)")
                self._elsewhere[id(sequence)] = (rank, sequence)
        if rank == 0:
            return self.queue(sequence)
        seeded = replace(request, sampling=replace(request.sampling, seed=sequence.seed))
        self._followers.send(rank, ("sample", id(sequence), seeded))
        if self._followers.lost.done():
            self._cancel_elsewhere()
        return sequence

    def cancel(self, sequence: RunningSequence) -> None:
        elsewhere = self._elsewhere.get(id(sequence))
        if elsewhere is None:
            super().cancel(sequence)
        else:
            self._followers.send(elsewhere[0], ("cancel", id(sequence)))

    def abandon(self) -> None:
        super().abandon()
        self._cancel_elsewhere()

    @property
    def sampled_tokens(self) -> int:
        return super().sampled_tokens + sum(counters.sampled_tokens for counters in self._followers.counters)

    @property
    def sequence_counts(self) -> tuple[int, int]:
        running, waiting = super().sequence_counts
        return running + len(self._elsewhere), waiting

    def _on_delta(self, number: int, delta: TokenDelta) -> None:
        with self._lock:
            elsewhere = self._elsewhere.get(number)
            if delta.finish_reason is not None:
                self._elsewhere.pop(number, None)
        if elsewhere is not None:
            elsewhere[1].deliver(delta)

    def _cancel_elsewhere(self) -> None:
        for number in list(self._elsewhere):
            self._on_delta(number, TokenDelta(finish_reason="cancelled"))


class RankedScorer(Scorer):
    """A scorer whose numbers are computed by all ranks, each for the terms of its share."""

    def __init__(
        self, followers: Followers, model: PolicyModel, adapter: str | None, max_tokens: int, head_rows: int
    ) -> None:
        super().__init__(model, adapter, max_tokens=max_tokens, head_rows=head_rows)
        self._followers = followers
        self._target = (adapter, max_tokens, head_rows)

    def logprobs(self, packed: PackedTrees) -> Tensor:
        compute = super().logprobs
        parts = self._followers.call_in_shares(self._target, "logprobs", packed, lambda share: compute(share.packed))
        return _joined(parts, packed, self._model.device)

    def likeliest(self, packed: PackedTrees, count: int) -> Likeliest:
        compute = super().likeliest
        parts = self._followers.call_in_shares(
            self._target,
            "likeliest",
            packed,
            lambda share: compute(share.packed, count),
            lambda share: (share.packed, count),
        )
        logprobs_SK = _joined([(share, each.logprobs_SK) for share, each in parts], packed, CPU)
        tokens = [(share, each.tokens_SK) for share, each in parts if each.tokens_SK is not None]
        return Likeliest(_joined(tokens, packed, CPU) if tokens else None, logprobs_SK)


def _on_all_ranks(method: str) -> Any:
    """Return the method of a learner that all ranks call with the same arguments."""

    def call(self: RankedLearner, *arguments: Any) -> Any:
        here = partial(getattr(super(RankedLearner, self), method), *arguments)
        return self._followers.call_alike(self._number, method, here, *to_device(arguments, CPU))

    return call


class RankedLearner(Learner):
    """A learner on every rank, called by rank 0."""

    def __init__(
        self, followers: Followers, model: PolicyModel, settings: LearnerSettings, adapter: str, **more: Any
    ) -> None:
        super().__init__(model, settings, adapter, group=followers.group, **more)
        self._followers = followers
        self._number = next(followers.numbers)
        followers.call_alike(None, "make_learner", lambda: None, self._number, settings, adapter, more.get("value"))
        followers.copy_weights(model, adapter)  # every rank takes the same steps from here on

    def forward_backward(
        self,
        packed: PackedTrees,
        loss_fn: Loss,
        inputs: LossInputs | None = None,
        *,
        seen: SeenTerms | None = None,
        **options: Any,
    ) -> dict[str, float]:
        given = inputs or LossInputs(torch.ones(packed.term_count))
        compute = super().forward_backward

        def arguments(share: Share) -> tuple[PackedTrees, Loss, LossInputs]:
            return share.packed, loss_fn, given.select(share.terms_N)

        def here(share: Share) -> dict[str, float]:
            part = SeenTerms(share.packed.term_count)
            sums = compute(*arguments(share), seen=part, **options)
            if seen is not None:
                seen.take_part(share.terms_N, part)
            return sums

        parts = self._followers.call_in_shares(self._number, "forward_backward", packed, here, arguments, options)
        sums: dict[str, float] = {}
        for _, metrics in parts:
            for name, value in metrics.items():
                sums[name] = sums.get(name, 0.0) + value
        return sums

    optim_step = _on_all_ranks("optim_step")
    keep_weights = _on_all_ranks("keep_weights")
    shorten_step = _on_all_ranks("shorten_step")
    forget_weights = _on_all_ranks("forget_weights")
    keep_reference = _on_all_ranks("keep_reference")
    take_reference = _on_all_ranks("take_reference")
    take_state = _on_all_ranks("take_state")

    def scorer(self, adapter: str | None) -> Scorer:
        settings = self.settings
        return RankedScorer(self._followers, self._model, adapter, settings.max_batch_tokens, settings.head_rows)


class RankedValueLearner(RankedLearner, ValueLearner):
    """A learner with a critic on every rank, called by rank 0."""

    value_step = _on_all_ranks("value_step")
    take_head = _on_all_ranks("take_head")

    def values(self, packed: PackedTrees) -> Tensor:
        compute = super().values
        parts = self._followers.call_in_shares(self._number, "values", packed, lambda share: compute(share.packed))
        return _joined(parts, packed, self._model.device)


class RankedPolicy(Policy):
    """The policy of rank 0, made by `lead`."""

    def __init__(
        self, followers: Followers, model: PolicyModel, engine: EngineSettings | None, thread: TorchThread
    ) -> None:
        self._followers = followers
        super().__init__(model, engine, thread)

    @classmethod
    def lead(
        cls,
        launch: Launch,
        ranks: RankSettings,
        about: Mapping[str, Any],
        model: str | PreTrainedModel,
        *,
        engine: EngineSettings | None = None,
        **options: Any,
    ) -> RankedPolicy:
        """Wait for the other ranks, and load the model on all of them.

        Args:
            about: the configuration, which has to be the same on every rank.
            options: those of `load_model`.

        Raises:
            RankLostError: a rank has not arrived, or is lost.
            PolicyError: a rank has other settings, or the model cannot be loaded.
        """
        device = device_of(launch, options.get("device", "auto"))
        thread = TorchThread()
        followers: Followers | None = None
        try:
            store = meet(launch, ranks, about)
            group = thread.call(lambda: join_group(launch, store, ranks, device))
            followers = Followers(group, ranks.rank_timeout)
            with followers.reporting_losses():
                loaded = followers.model = thread.call(lambda: load_on_rank(model, options, device, ranks, group))
            followers.results()  # all have loaded it
            return cls(followers, loaded, engine, thread)
        except BaseException:
            if followers is not None:
                followers.close()
            thread.close()
            raise

    def learner(self, settings: LearnerSettings, adapter: str = DEFAULT_ADAPTER) -> Learner:
        return RankedLearner(self._followers, self.model, settings, adapter)

    def value_learner(
        self, settings: LearnerSettings, value: ValueSettings, adapter: str = DEFAULT_ADAPTER
    ) -> ValueLearner:
        return RankedValueLearner(self._followers, self.model, settings, adapter, value=value)

    def scorer(self, adapter: str | None, *, max_tokens: int, head_rows: int) -> Scorer:
        return RankedScorer(self._followers, self.model, adapter, max_tokens, head_rows)

    def read_weights(self, folder: Path, adapter: str = DEFAULT_ADAPTER) -> None:
        super().read_weights(folder, adapter)
        self._followers.copy_weights(self.model, adapter)

    def check_agreement(self) -> None:
        """Check that all ranks have the same weights. Inside of a turn.

        Raises:
            PolicyError: a rank has other weights.
        """
        if self._followers.lost.done():
            return
        for adapter in self.model.adapters:
            arguments = [(adapter,)] * self._followers.count
            expected, digests = self._followers.call(None, "digest", arguments, partial(self.digest, adapter))
            for rank, digest in enumerate(digests, 1):
                if digest != expected:
                    raise PolicyError(
                        f"rank {rank} has other weights of {adapter!r} than rank 0: do all ranks have the same kind of "
                        "device and the same torch?"
                    )

    def counters(self) -> EngineCounters:
        total = super().counters()
        for counters in self._followers.counters:
            for name, count in vars(counters).items():
                setattr(total, name, getattr(total, name) + count)
        return total

    async def watch(self, work: Coroutine[Any, Any, T]) -> T:
        task, loop = asyncio.ensure_future(work), asyncio.get_running_loop()
        self._followers.lost.add_done_callback(lambda _: loop.is_closed() or loop.call_soon_threadsafe(task.cancel))
        try:
            return await task
        except BaseException:
            self._followers.check()  # a lost rank is the cause of any other error
            raise

    def close(self) -> None:
        """End the run of the other ranks, stop sampling and end the torch thread."""
        if self._followers.close():
            self._thread.call(self._followers.group.leave)
        super().close()

    def _make_engine(self, settings: EngineSettings | None) -> Engine:
        return RankedEngine(self._followers, self.model, self._thread, settings)

    def _learning_turn(self, job: Callable[[], T], share: float) -> T:
        # The other ranks sample nothing in a turn, so rank 0 does not either.
        with self._followers.turn(learning=True):
            return super()._learning_turn(job, 0.0)

    def _turn(self, job: Callable[[], T]) -> T:
        with self._followers.turn(learning=False):
            return super()._turn(job)


def _joined(parts: Sequence[tuple[Share, Tensor]], packed: PackedTrees, device: torch.device) -> Tensor:
    """Return the rows [S, …] of all terms from those of the shares."""
    rows = torch.empty(packed.term_count, *parts[0][1].shape[1:], dtype=parts[0][1].dtype, device=device)
    for share, part_N in parts:
        rows[torch.from_numpy(share.terms_N)] = part_N.to(device)
    return rows
