"""Rank 0: the policy whose passes all ranks compute together.

Rank 0 announces each call of a learner or a scorer, with all its arguments, and every rank makes the same call. Within
it `TreePass` computes the rank's share of the trees, and `RankGroup` adds up what the ranks have computed. Weights
change in turns: a turn begins for the other ranks with its first call, and until it ends they sample nothing, as rank 0
does. A request is sampled by the least busy rank.
"""

from __future__ import annotations

import asyncio
import functools
import io
import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

import torch
from transformers import PreTrainedModel

from ...tokens import TokenDelta, TokenRequest
from ..engine import Engine, EngineCounters
from ..errors import PolicyError, QueueFullError
from ..learner import Learner, ValueLearner
from ..model import DEFAULT_ADAPTER, PolicyModel
from ..policy import Policy
from ..rank_group import RankGroup
from ..settings import EngineSettings, LearnerSettings, RankSettings, ValueSettings
from ..step_batch import RunningSequence
from ..torch_thread import TorchThread
from ..tree_pass import Scorer
from . import Launch
from .rendezvous import (
    CLOSE_SECONDS,
    Channel,
    RankLostError,
    device_of,
    end_later,
    join_group,
    load_on_rank,
    meet,
)

T = TypeVar("T")

logger = logging.getLogger(__name__)

_LOSS_SECONDS: Final = 3.0
"""Seconds between a collective operation that fails and the news that a rank is lost, at most."""
_MOST_ROLLOUTS: Final = 1 << 16
"""Maximum number of rollouts whose rank is remembered."""


class Followers:
    """The other ranks, seen from rank 0. Turns and calls belong to the torch thread.

    Args:
        group: all ranks.
        silence: seconds without a message after which a rank counts as lost.
    """

    def __init__(self, group: RankGroup, silence: float) -> None:
        self.group = group
        self.lost: Future[None] = Future()
        """Fails with the reason once a rank is lost."""
        self.counters = [EngineCounters() for _ in range(group.size)]
        """Work of each rank's engine so far; rank 0's are its engine's own."""
        self.on_delta: Callable[[int, TokenDelta], None] = lambda number, delta: None
        """Called with each delta of a request, and the number that the request was sent with."""
        self.learner_numbers = itertools.count()
        """Learners are numbered in the order in which all ranks make them."""
        self._lock = threading.Lock()
        self._end: threading.Timer | None = None
        self._depth = 0
        self._learning = False
        self._begun = False
        self._in_call = False
        self._in_step = True
        """False once rank 0 has failed within a call: the others wait for its part, so no call can follow."""
        self._channels = [Channel(rank, silence) for rank in range(1, group.size)]
        self._readers = [
            threading.Thread(target=self._read, args=(rank, channel), name=f"reads rank {rank}", daemon=True)
            for rank, channel in enumerate(self._channels, 1)
        ]
        for reader in self._readers:
            reader.start()

    def check(self) -> None:
        """Raise `RankLostError` if a rank is lost."""
        if self.lost.done():
            self.lost.result()

    @contextmanager
    def turn(self, *, learning: bool) -> Iterator[None]:
        """Hold a turn, or a part of an outer turn; the other ranks take part from their first call on.

        Args:
            learning: whether the memory of their caches is given back for it.
        """
        if self._depth == 0:
            self._learning, self._begun = learning, False
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0 and self._begun and self._in_step:
                self._send_all(("end",))

    @contextmanager
    def call(
        self, target: Any, method: str, arguments: tuple[Any, ...] = (), options: Mapping[str, Any] | None = None
    ) -> Iterator[None]:
        """Have the other ranks call a method, which rank 0 calls in the block. They make inner calls by themselves.

        Args:
            target: number of a learner, arguments of a scorer, or None for the rank itself.

        Raises:
            RankLostError: a rank is lost, or has failed.
        """
        if self._in_call:
            yield
            return
        self.check()
        if self._depth == 0:
            raise RuntimeError(f"{method} is no part of a turn: use `Policy.run` or `Policy.learn`")
        if not self._in_step:
            raise PolicyError(f"{method}: the other ranks still wait for a call in which rank 0 has failed")
        self._begun = True
        call = io.BytesIO()
        torch.save((target, method, arguments, options or {}), call)  # its tensors are loaded on any device
        self._send_all(("call", self._learning, call.getvalue()))
        self._in_call, self._in_step = True, False
        try:
            with self.reporting_losses():
                yield
            self._in_step = True
        finally:
            self._in_call = False

    @contextmanager
    def reporting_losses(self) -> Iterator[None]:
        """Turn the failure of a collective operation with a lost rank into `RankLostError`."""
        try:
            yield
        except RankLostError:
            raise
        except RuntimeError:
            wait([self.lost], _LOSS_SECONDS)  # the operation fails a moment before the loss is reported
            self.check()
            raise

    def send(self, rank: int, message: tuple[Any, ...]) -> None:
        """Send a message to one rank, from any thread."""
        self._channels[rank - 1].send(message)

    def close(self) -> bool:
        """End the run of the other ranks; return True if all of them end, so that the group can be left."""
        is_whole = self._in_step and not self.lost.done()
        if not is_whole:
            reason = self.lost.exception() if self.lost.done() else "its part of a call failed"
            self._send_all(("failed", str(reason)))
        for channel in self._channels:
            channel.close()
        for reader in self._readers if is_whole else []:
            reader.join(CLOSE_SECONDS)
        if self._end is not None:
            self._end.cancel()
        return is_whole and not any(reader.is_alive() for reader in self._readers)

    def _send_all(self, message: tuple[Any, ...]) -> None:
        for channel in self._channels:
            channel.send(message)

    def _read(self, rank: int, channel: Channel) -> None:
        try:
            for kind, *values in channel.messages():
                if kind == "failed":
                    raise RankLostError(f"rank {rank} failed: {values[0]}")
                number, delta, counters = values
                self.counters[rank] = counters or self.counters[rank]
                self.on_delta(number, delta)
        except Exception as error:  # any: no later message would be handled
            if not isinstance(error, RankLostError):
                logger.exception("a message of rank %d failed", rank)
            self._report_loss(RankLostError(f"{error}; `resume` continues from the last checkpoint"))

    def _report_loss(self, error: RankLostError) -> None:
        with self._lock:
            if self.lost.done():
                return
            self._end = end_later(str(error))
            self.lost.set_exception(error)
        # They end, and with them the collective operation that rank 0 may wait in.
        self._send_all(("failed", str(error)))


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


def on_all_ranks(*methods: str) -> Callable[[type[T]], type[T]]:
    """Return a decorator of a class of rank 0: the other ranks make each call of these methods of its base too."""

    def on_all(kind: type[T], method: str) -> Callable[..., Any]:
        @functools.wraps(getattr(kind, method))
        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            with self.followers.call(self.target, method, arguments, options):
                return getattr(super(kind, self), method)(*arguments, **options)

        return call

    def decorate(kind: type[T]) -> type[T]:
        for method in methods:
            setattr(kind, method, on_all(kind, method))
        return kind

    return decorate


@on_all_ranks("logprobs", "likeliest")
class RankedScorer(Scorer):
    """A scorer on every rank, called by rank 0."""

    def __init__(self, followers: Followers, model: PolicyModel, adapter: str | None, **options: Any) -> None:
        super().__init__(model, adapter, **options)
        self.followers = followers
        self.target = (adapter, options)


@on_all_ranks(
    "forward_backward",
    "logprobs",
    "optim_step",
    "bounded_step",
    "keep_reference",
    "take_state",
)
class RankedLearner(Learner):
    """A learner on every rank, called by rank 0. All take the same steps."""

    def __init__(
        self, followers: Followers, model: PolicyModel, settings: LearnerSettings, adapter: str, **more: Any
    ) -> None:
        super().__init__(model, settings, adapter, **more)
        self.followers = followers
        self.target = next(followers.learner_numbers)

    def scorer(self, adapter: str | None) -> Scorer:
        return RankedScorer(self.followers, self._model, adapter, **self.scorer_options)


@on_all_ranks("values", "value_step", "take_head")
class RankedValueLearner(RankedLearner, ValueLearner):
    """A learner with a critic on every rank, called by rank 0."""


@on_all_ranks("digests", "share_weights")
class RankedPolicy(Policy):
    """The policy of rank 0, made by `lead`."""

    target = None

    def __init__(
        self, followers: Followers, model: PolicyModel, engine: EngineSettings | None, thread: TorchThread
    ) -> None:
        self.followers = followers
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
                loaded = thread.call(lambda: load_on_rank(model, options, ranks, group))
            return cls(followers, loaded, engine, thread)
        except BaseException:
            if followers is not None:
                followers.close()
            thread.close()
            raise

    def learner(self, settings: LearnerSettings, adapter: str = DEFAULT_ADAPTER) -> Learner:
        learner = RankedLearner(self.followers, self.model, settings, adapter)
        with self.followers.call(None, "learner", (settings, adapter)):
            self.share_weights(adapter)
        return learner

    def value_learner(
        self, settings: LearnerSettings, value: ValueSettings, adapter: str = DEFAULT_ADAPTER
    ) -> ValueLearner:
        learner = RankedValueLearner(self.followers, self.model, settings, adapter, value=value)
        with self.followers.call(None, "value_learner", (settings, value, adapter)):
            self.share_weights(adapter)
        return learner

    def scorer(self, adapter: str | None, *, max_tokens: int, head_rows: int) -> Scorer:
        return RankedScorer(self.followers, self.model, adapter, max_tokens=max_tokens, head_rows=head_rows)

    def check_agreement(self) -> None:
        """Check that all ranks have the same weights. Inside of a turn.

        Raises:
            PolicyError: a rank has other weights.
        """
        for adapter in () if self.followers.lost.done() else self.model.adapters:
            digests = self.digests(adapter)
            for rank, digest in enumerate(digests):
                if digest != digests[0]:
                    raise PolicyError(
                        f"rank {rank} has other weights of {adapter!r} than rank 0: do all ranks have the same kind of "
                        "device and the same torch?"
                    )

    def counters(self) -> EngineCounters:
        total = super().counters()
        for counters in self.followers.counters:
            for name, count in vars(counters).items():
                setattr(total, name, getattr(total, name) + count)
        return total

    async def watch(self, work: Coroutine[Any, Any, T]) -> T:
        task, loop = asyncio.ensure_future(work), asyncio.get_running_loop()
        self.followers.lost.add_done_callback(lambda _: loop.is_closed() or loop.call_soon_threadsafe(task.cancel))
        try:
            return await task
        except BaseException:
            self.followers.check()  # a lost rank is the cause of any other error
            raise

    def close(self) -> None:
        """End the run of the other ranks, stop sampling and end the torch thread."""
        if self.followers.close():
            self._thread.call(self.followers.group.leave)
        super().close()

    def _make_engine(self, settings: EngineSettings | None) -> Engine:
        return RankedEngine(self.followers, self.model, self._thread, settings)

    def _learning_turn(self, job: Callable[[], T], share: float) -> T:
        # The other ranks sample nothing in a turn, so rank 0 does not either.
        with self.followers.turn(learning=True):
            return super()._learning_turn(job, 0.0)

    def _turn(self, job: Callable[[], T]) -> T:
        with self.followers.turn(learning=False):
            return super()._turn(job)
