"""A rank other than 0: it samples what rank 0 sends, and in turns computes its part of rank 0's commands.

    message "sample" ─► engine ─► messages "delta"
    message "call"   ─► torch thread ─► message "result", until message "end" ends the turn

It writes no file, and logs to its own standard error.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...errors import UserError
from ...processes import deferred_interrupt
from ...tokens import CompletionRecord, TokenDelta, TokenRequest, TokenTree, pack
from ..errors import PolicyError, first_line
from ..launch import Launch
from ..learner import Learner, ValueLearner
from ..load import load_model
from ..model import PolicyModel
from ..policy import Policy
from ..rank_group import NO_SWEEP, RankGroup
from ..settings import EngineSettings, LearnerSettings, RankSettings, ValueSettings
from ..step_batch import RunningSequence
from ..torch_thread import TorchThread
from ..tree_pass import Scorer
from .commands import Channel, end_later
from .rendezvous import RankLostError, device_of, join_group, meet

logger = logging.getLogger(__name__)

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
    store = meet(launch, ranks, about)
    # Rank 0 gets a stop signal too, and may need this rank until it has written its checkpoint.
    with deferred_interrupt(threading.Event()):
        thread = TorchThread()
        channel: Channel | None = None
        try:
            group = thread.call(lambda: join_group(launch, store, ranks, device))
            channel = Channel(0, ranks.rank_timeout)
            try:
                loaded = thread.call(lambda: load_on_rank(model, options, device, ranks, group))
                follower = _Follower(Policy(loaded, engine, thread), group, channel)
                channel.send(("result", None))  # rank 0 waits until all have loaded it
                follower.run()
            except Exception as error:
                channel.send(("failed", first_line(error)))
                raise
            channel.close()
            thread.call(group.leave)
        finally:
            end = end_later("this rank waits for a lost rank")
            if channel is not None:
                channel.close()
            thread.close()
            end.cancel()


class _Follower:
    """Handles the messages of rank 0."""

    def __init__(self, policy: Policy, group: RankGroup, channel: Channel) -> None:
        self._policy = policy
        self._group = group
        self._channel = channel
        self._learners: dict[int, Learner] = {}
        self._sampling: dict[int, RunningSequence] = {}
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        """Calls of the current turn, and None at its end."""
        self._failure: BaseException | None = None
        """Error of a turn."""

    def run(self) -> None:
        """Handle messages until rank 0 ends the run.

        Raises:
            RankLostError: rank 0 is lost, or a turn of this rank failed.
        """
        in_turn = False
        try:
            for kind, *values in self._channel.messages():
                if kind == "sample":
                    self._sample(*values)
                elif kind == "cancel":
                    if (sequence := self._sampling.get(values[0])) is not None:
                        self._policy.engine.cancel(sequence)
                elif kind == "call":
                    learning, *call = values
                    self._calls.put(call)
                    if not in_turn:
                        turn = self._policy.submit_turn(self._turn, learning=learning)
                        turn.add_done_callback(self._on_turn_end)
                    in_turn = True
                elif kind == "end":
                    in_turn = False
                    self._calls.put(None)
                else:
                    raise RankLostError(f"rank 0 failed ({values[0]})")
        except RankLostError as error:
            if isinstance(self._failure, UserError):
                raise self._failure from error
            raise RankLostError(f"{error}: this rank cannot continue without it") from self._failure
        finally:
            self._calls.put(None)

    def _sample(self, number: int, request: TokenRequest) -> None:
        engine = self._policy.engine

        def on_delta(delta: TokenDelta) -> None:
            ends = delta.finish_reason is not None
            self._channel.send(("delta", number, delta, engine.counters if ends else None))
            if ends:
                self._sampling.pop(number, None)

        try:
            self._sampling[number] = engine.submit(request, on_delta)
        except PolicyError as error:
            on_delta(TokenDelta(finish_reason="cancelled", failure=str(error)))

    def _turn(self) -> None:
        """Answer calls until the turn ends. On the torch thread."""
        while (call := self._calls.get()) is not None:
            self._channel.send(("result", self._result(*call)))

    def _on_turn_end(self, turn: Future[None]) -> None:
        self._failure = turn.exception()
        if self._failure is not None:
            logger.error("a turn of this rank failed", exc_info=self._failure)
            self._channel.send(("failed", first_line(self._failure)))

    def _result(self, target: Any, method: str, arguments: tuple[Any, ...] | None, options: Mapping[str, Any]) -> Any:
        """Call a method of a learner (by its number), of a scorer (by its arguments), or of this rank (None)."""
        model = self._policy.model
        if arguments is None:  # no share, but the other ranks need this rank's part of the layers
            if model.shards is not None:
                model.shards.begin(NO_SWEEP)
            return None
        called: Any = self
        if isinstance(target, int):
            called = self._learners[target]
        elif target is not None:
            adapter, max_tokens, head_rows = target
            called = Scorer(model, adapter, max_tokens=max_tokens, head_rows=head_rows)
        return to_device(getattr(called, method)(*to_device(arguments, model.device), **options), CPU)

    def make_learner(self, number: int, settings: LearnerSettings, adapter: str, value: ValueSettings | None) -> None:
        """Call of rank 0: make a learner with this number."""
        model = self._policy.model
        self._learners[number] = (
            Learner(model, settings, adapter, self._group)
            if value is None
            else ValueLearner(model, settings, adapter, value, self._group)
        )

    def copy_weights(self, adapter: str) -> None:
        """Call of rank 0: copy its weights of an adapter, or all under full training."""
        self._group.copy_from_first(self._policy.model.trainable(adapter))
        self._policy.weights_changed(adapter)

    def digest(self, adapter: str) -> str:
        """Call of rank 0: return the digest of the weights of an adapter."""
        return self._policy.digest(adapter)


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
