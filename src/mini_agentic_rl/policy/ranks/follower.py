"""A rank other than 0: it samples what rank 0 sends, and in turns computes its part of rank 0's commands.

    message "sample" ─► engine ─► messages "delta"
    message "turn"   ─► a job of the torch thread: receive a command, compute, return the result, until the turn ends

It writes no file and prints nothing; rank 0 receives what it logs.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.distributed.distributed_c10d import Store
from transformers import PreTrainedModel

from ...errors import UserError
from ...logging import PACKAGE_LOGGER
from ...processes import deferred_interrupt
from ...tokens import CompletionRecord, PackedTrees, TokenDelta, TokenRequest, TokenTree, pack
from ..errors import PolicyError
from ..launch import Launch
from ..learner import Learner, ValueLearner
from ..load import load_model
from ..loss import Loss, TermStreams
from ..model import PolicyModel
from ..policy import Policy
from ..rank_group import RankGroup
from ..settings import EngineSettings, LearnerSettings, RankSettings, ValueSettings
from ..step_batch import RunningSequence
from ..torch_thread import TorchThread
from ..tree_pass import Scorer
from .rendezvous import Channel, RankLostError, device_of, join_group, open_store, wait_for_start

logger = logging.getLogger(__name__)

LOSS_SECONDS: Final = 3.0
"""Seconds between a collective operation that fails and the news that a rank has gone, at most."""
END_SECONDS: Final = 60.0
"""Seconds after a loss in which a process ends by itself: its torch thread may wait for the lost rank for ever."""
_STOP_SECONDS: Final = 25.0
"""Seconds that rank 0 has, after this rank was asked to stop, to write its checkpoint: launchers give 30."""
_POLL_SECONDS: Final = 0.2


def follow_rank_0(
    launch: Launch,
    ranks: RankSettings,
    about: Mapping[str, Any],
    model: str | PreTrainedModel,
    *,
    engine: EngineSettings | None = None,
    **options: Any,
) -> None:
    """Follow `RankedPolicy.lead`, which was given the same, on another rank; returns at the end of the run.

    Args:
        about: the configuration of the run, which has to be rank 0's.
        options: those of `load_model`.

    Raises:
        RankLostError: rank 0 has gone.
        PolicyError: the model cannot be loaded, or rank 0 has another configuration.
    """
    device = device_of(launch, options.get("device", "auto"))
    stop = threading.Event()
    with deferred_interrupt(stop):
        store = open_store(launch, ranks.rank_timeout)
        if wait_for_start(launch, store, about, stop.is_set):
            _Follower(launch, ranks, device, engine).serve(store, model, options, stop)


class _Follower:
    """One run of a rank that is not the first."""

    def __init__(
        self, launch: Launch, settings: RankSettings, device: torch.device, engine: EngineSettings | None
    ) -> None:
        self._launch = launch
        self._settings = settings
        self._device = device
        self._engine = engine
        self._channel = Channel(0, settings.rank_timeout)
        self._group: RankGroup | None = None
        self._policy: Policy | None = None
        self._learners: dict[int, Learner] = {}
        self._sampling: dict[int, RunningSequence] = {}
        self._over = threading.Event()
        self._failure: Exception | None = None

    def serve(
        self, store: Store, model: str | PreTrainedModel, options: Mapping[str, Any], stop: threading.Event
    ) -> None:
        """Load the policy, and do what rank 0 says until it ends the run."""
        thread = TorchThread()
        try:
            self._group = thread.call(lambda: join_group(self._launch, store, self._settings, self._device))
            self._channel.start(self._on_message, self._on_lost)
            with _logs_go_to(self._channel):
                loaded = thread.call(lambda: load_on_rank(model, options, self._device, self._settings, self._group))
                self._policy = Policy(loaded, self._engine, thread)
                self._channel.send(("ready",))
                self._wait(stop)
        except Exception as error:
            if self._failure is None:
                self._channel.send(("failed", _in_one_line(error)))
                raise
        finally:
            with ends_at_once("this rank waits for another one that has gone"):
                self._channel.close()
                if self._group is not None and self._failure is None:
                    thread.call(self._group.leave)
                thread.close()
        if self._failure is not None:
            raise self._failure

    def _wait(self, stop: threading.Event) -> None:
        since: float | None = None
        while not self._over.wait(_POLL_SECONDS):
            if stop.is_set():  # so is rank 0, which may need this rank until it has written its checkpoint
                since = since or time.monotonic()
                if time.monotonic() - since > _STOP_SECONDS:
                    return

    def _on_message(self, message: tuple[Any, ...]) -> None:
        kind = message[0]
        if kind == "goodbye":
            self._over.set()
        elif self._policy is None:
            return
        elif kind == "sample":
            self._sample(self._policy, message[1], message[2])
        elif kind == "cancel":
            if (sequence := self._sampling.get(message[1])) is not None:
                self._policy.engine.cancel(sequence)
        elif kind == "turn":
            self._policy.submit_turn(self._turn, learning=message[1]).add_done_callback(self._on_turn_end)

    def _on_lost(self, reason: str) -> None:
        if not self._over.is_set() and self._failure is None:
            self._failure = RankLostError(f"rank 0 {reason}: this rank cannot go on without it")
        self._over.set()

    def _sample(self, policy: Policy, number: int, request: TokenRequest) -> None:
        def on_delta(delta: TokenDelta) -> None:
            self._channel.send(("delta", number, delta))
            if delta.finish_reason is not None:
                self._sampling.pop(number, None)
                self._channel.send(("counters", replace(policy.engine.counters)))

        try:
            self._sampling[number] = policy.engine.submit(request, on_delta)
        except PolicyError as error:
            self._channel.send(("delta", number, TokenDelta(finish_reason="cancelled", failure=str(error))))

    def _turn(self) -> None:
        """Compute commands until the turn ends. On the torch thread."""
        if self._policy is None or self._group is None:
            raise RuntimeError("a turn before the policy is loaded")
        while (command := self._group.scatter(None)) is not None:
            target, method, arguments, forgotten = command
            for number in forgotten:
                self._learners.pop(number, None)
            self._group.gather(self._result(self._policy.model, target, method, arguments))

    def _result(self, model: PolicyModel, target: Any, method: str, arguments: tuple[Any, ...] | None) -> Any:
        """Call a method of a learner (by its number), of a scorer (by its arguments), or of this rank (None)."""
        if arguments is None:  # no share; the others still need this rank's part of the layers
            if model.shards is not None:
                model.shards.end()
            return None
        if isinstance(target, int):
            called: Any = self._learners[target]
        elif target is None:
            called = self
        else:
            adapter, max_tokens, head_rows = target
            called = Scorer(model, adapter, max_tokens=max_tokens, head_rows=head_rows)
        return to_device(getattr(called, method)(*to_device(arguments, model.device)), torch.device("cpu"))

    def make_learner(self, number: int, settings: LearnerSettings, adapter: str, value: ValueSettings | None) -> None:
        """Command of rank 0: make a learner, to be named by this number."""
        assert self._policy is not None
        model = self._policy.model
        self._learners[number] = (
            Learner(model, settings, adapter, self._group)
            if value is None
            else ValueLearner(model, settings, adapter, value, self._group)
        )

    def forward_backward(
        self, number: int, packed: PackedTrees, loss: Loss, streams: TermStreams, gradient: bool, entropy_gradient: bool
    ) -> dict[str, float]:
        """Command of rank 0: learn a share of its trees."""
        return self._learners[number].forward_backward(
            packed, loss, streams, gradient=gradient, entropy_gradient=entropy_gradient
        )

    def copy_weights(self, adapter: str) -> None:
        """Command of rank 0: take its weights of an adapter, or all under full training."""
        assert self._policy is not None
        assert self._group is not None
        self._group.copy_from_first(self._policy.model.trainable(adapter))
        self._policy.weights_changed(adapter)

    def digest(self, adapter: str) -> str:
        """Command of rank 0: return the digest of the weights of an adapter."""
        assert self._policy is not None
        return self._policy.digest(adapter)

    def _on_turn_end(self, future: Any) -> None:
        error = future.exception()
        if isinstance(error, RuntimeError):  # a collective operation fails a moment before the loss is reported
            self._over.wait(LOSS_SECONDS)
        if error is None or self._failure is not None:
            return
        logger.error("a turn of this rank failed", exc_info=error)
        self._failure = error if isinstance(error, UserError) else RankLostError(f"this rank failed: {error}")
        self._channel.send(("failed", _in_one_line(error)))
        self._over.set()


def load_on_rank(
    model: str | PreTrainedModel,
    options: Mapping[str, Any],
    device: torch.device,
    settings: RankSettings,
    group: RankGroup | None,
) -> PolicyModel:
    """Return the model on a rank's device; with `shard` this rank's part, with which all ranks have computed once."""
    loaded = load_model(model, **{**options, "device": str(device)}, shard_over=group if settings.shard else None)
    if loaded.shards is not None:
        tree = TokenTree()
        tree.insert(CompletionRecord(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.float32)))
        Scorer(loaded, None, max_tokens=1, head_rows=1).logprobs(pack([tree]))
    return loaded


def to_device(value: Any, device: torch.device) -> Any:
    """Return a value with the tensors of its mappings, lists and tuples on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: to_device(each, device) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(to_device(each, device) for each in value)
    return value


@contextmanager
def ends_at_once(reason: str) -> Iterator[None]:
    """End the process if the block takes longer than `END_SECONDS`."""
    timer = end_later(reason)
    try:
        yield
    finally:
        timer.cancel()


def end_later(reason: str) -> threading.Timer:
    """Return a timer that ends the process after `END_SECONDS`."""

    def end() -> None:
        os.write(2, f"error: {reason}; ended at once\n".encode())
        os._exit(1)

    timer = threading.Timer(END_SECONDS, end)
    timer.daemon = True
    timer.start()
    return timer


@contextmanager
def _logs_go_to(channel: Channel) -> Iterator[None]:
    """Send what the package logs to rank 0, and nowhere else."""
    package = logging.getLogger(PACKAGE_LOGGER)
    handlers, propagates = package.handlers[:], package.propagate
    package.handlers[:], package.propagate = [_ChannelHandler(channel.send)], False
    try:
        yield
    finally:
        package.handlers[:], package.propagate = handlers, propagates


class _ChannelHandler(logging.Handler):
    def __init__(self, send: Callable[[tuple[str, str]], None]) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._send = send
        self._process = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        if os.getpid() == self._process:
            self._send(("log", self.format(record)))


def _in_one_line(error: BaseException) -> str:
    return " ".join(f"{error}".split()) or type(error).__name__
