"""A rank other than 0: it samples what rank 0 sends, and in turns computes its part of rank 0's commands.

    message "sample" ─► engine ─► messages "delta"
    message "turn"   ─► a job of the torch thread: receive a command, compute, return the result, until the turn ends

It writes no file, and logs to its own standard error.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...errors import UserError
from ...processes import deferred_interrupt
from ...tokens import CompletionRecord, TokenDelta, TokenRequest, TokenTree, pack
from ..errors import PolicyError
from ..launch import Launch
from ..learner import Learner, ValueLearner
from ..load import load_model
from ..model import PolicyModel
from ..policy import Policy
from ..rank_group import RankGroup
from ..settings import EngineSettings, LearnerSettings, RankSettings, ValueSettings
from ..step_batch import RunningSequence
from ..torch_thread import TorchThread
from ..tree_pass import Scorer
from .commands import LOSS_SECONDS, Channel, end_later
from .rendezvous import RankLostError, device_of, join_group, meet

logger = logging.getLogger(__name__)

_STOP_SECONDS: Final = 25.0
"""Seconds that rank 0 has to write its checkpoint after this rank got a stop signal: launchers give 30."""
_POLL_SECONDS: Final = 0.2
CPU: Final = torch.device("cpu")


def follow_rank_0(
    launch: Launch,
    ranks: RankSettings,
    about: Mapping[str, Any],
    model: str | PreTrainedModel,
    *,
    engine: EngineSettings | None = None,
    **options: Any,
) -> None:
    """Follow `RankedPolicy.lead` on another rank, with the same arguments; returns at the end of the run.

    Args:
        about: the configuration of the run, which has to be that of rank 0.
        options: those of `load_model`.

    Raises:
        RankLostError: rank 0 is lost.
        PolicyError: the model cannot be loaded, or rank 0 has another configuration.
    """
    device = device_of(launch, options.get("device", "auto"))
    stop = threading.Event()
    with deferred_interrupt(stop):
        store = meet(launch, ranks, about, stop.is_set)
        if store is None:
            return
        thread = TorchThread()
        channel = Channel(0, ranks.rank_timeout)
        group: RankGroup | None = None
        follower: _Follower | None = None
        try:
            group = thread.call(lambda: join_group(launch, store, ranks, device))
            follower = _Follower(group, channel)
            channel.start(follower.on_message, follower.on_lost)
            loaded = thread.call(lambda: load_on_rank(model, options, device, ranks, group))
            follower.policy = Policy(loaded, engine, thread)
            thread.submit(lambda: group.gather(None))  # ends once all have loaded it
            follower.wait(stop)
        except Exception as error:
            if follower is None or follower.failure is None:
                channel.send(("failed", _in_one_line(error)))
                raise
        finally:
            end = end_later("this rank waits for a lost rank")
            channel.close()
            if group is not None and follower is not None and follower.failure is None:
                thread.call(group.leave)
            thread.close()
            end.cancel()
        if follower.failure is not None:
            raise follower.failure


class _Follower:
    """Handles the messages and commands of rank 0."""

    def __init__(self, group: RankGroup, channel: Channel) -> None:
        self.policy: Policy | None = None
        """Set once it is loaded, before the first turn."""
        self.failure: Exception | None = None
        """Error that ends the run of this rank."""
        self._group = group
        self._channel = channel
        self._learners: dict[int, Learner] = {}
        self._sampling: dict[int, RunningSequence] = {}
        self._over = threading.Event()

    def wait(self, stop: threading.Event) -> None:
        """Wait until the run ends, or for `_STOP_SECONDS` once `stop` is set."""
        since: float | None = None
        while not self._over.wait(_POLL_SECONDS):
            if stop.is_set():  # so is rank 0, which may need this rank until it has written its checkpoint
                since = since or time.monotonic()
                if time.monotonic() - since > _STOP_SECONDS:
                    return

    def on_message(self, message: tuple[Any, ...]) -> None:
        """Handle a message of rank 0."""
        kind, *values = message
        if kind == "goodbye":
            self._over.set()
        elif self.policy is None:
            return
        elif kind == "sample":
            self._sample(self.policy, *values)
        elif kind == "cancel":
            if (sequence := self._sampling.get(values[0])) is not None:
                self.policy.engine.cancel(sequence)
        elif kind == "turn":
            self.policy.submit_turn(self._turn, learning=values[0]).add_done_callback(self._on_turn_end)

    def on_lost(self, reason: str) -> None:
        """End the run, because rank 0 is lost."""
        if not self._over.is_set() and self.failure is None:
            self.failure = RankLostError(f"rank 0 {reason}: this rank cannot continue without it")
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
        assert self.policy is not None
        while (command := self._group.scatter(None)) is not None:
            self._group.gather(self._result(self.policy, *command))

    def _result(
        self, policy: Policy, target: Any, method: str, arguments: tuple[Any, ...] | None, options: Mapping[str, Any]
    ) -> Any:
        """Call a method of a learner (by its number), of a scorer (by its arguments), or of this rank (None)."""
        model = policy.model
        if arguments is None:  # no share, but the other ranks need this rank's part of the layers
            if model.shards is not None:
                model.shards.end()
            return None
        arguments = to_device(arguments, model.device)
        if target is None:
            return getattr(self, method)(policy, *arguments)
        if isinstance(target, int):
            called: Any = self._learners[target]
        else:
            adapter, max_tokens, head_rows = target
            called = Scorer(model, adapter, max_tokens=max_tokens, head_rows=head_rows)
        return to_device(getattr(called, method)(*arguments, **options), CPU)

    def make_learner(
        self, policy: Policy, number: int, settings: LearnerSettings, adapter: str, value: ValueSettings | None
    ) -> None:
        """Command of rank 0: make a learner with this number."""
        self._learners[number] = (
            Learner(policy.model, settings, adapter, self._group)
            if value is None
            else ValueLearner(policy.model, settings, adapter, value, self._group)
        )

    def copy_weights(self, policy: Policy, adapter: str) -> None:
        """Command of rank 0: copy its weights of an adapter, or all under full training."""
        self._group.copy_from_first(policy.model.trainable(adapter))
        policy.weights_changed(adapter)

    def digest(self, policy: Policy, adapter: str) -> str:
        """Command of rank 0: return the digest of the weights of an adapter."""
        return policy.digest(adapter)

    def _on_turn_end(self, future: Any) -> None:
        error = future.exception()
        if isinstance(error, RuntimeError):  # a collective operation fails a moment before the loss is reported
            self._over.wait(LOSS_SECONDS)
        if error is None or self.failure is not None:
            return
        logger.error("a turn of this rank failed", exc_info=error)
        self.failure = error if isinstance(error, UserError) else RankLostError(f"this rank failed: {error}")
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


def _in_one_line(error: BaseException) -> str:
    return " ".join(f"{error}".split()) or type(error).__name__
