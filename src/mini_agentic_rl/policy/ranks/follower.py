"""A rank other than 0: it samples what rank 0 sends, and in turns makes the calls that rank 0 makes.

    message "sample" ─► engine ─► messages "delta"
    message "call"   ─► torch thread, until message "end" ends the turn

It writes no file, and logs to its own standard error.
"""

from __future__ import annotations

import io
import logging
import queue
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import torch
from transformers import PreTrainedModel

from ...errors import UserError, first_line
from ...processes import deferred_interrupt
from ...tokens import TokenDelta, TokenRequest
from ..errors import PolicyError
from ..learner import Learner
from ..policy import Policy
from ..settings import EngineSettings, RankSettings
from ..step_batch import RunningSequence
from ..torch_thread import TorchThread
from ..tree_pass import Scorer
from . import Launch
from .rendezvous import Channel, RankLostError, device_of, end_later, join_group, load_on_rank, meet

logger = logging.getLogger(__name__)


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
                loaded = thread.call(lambda: load_on_rank(model, options, ranks, group))
                _Follower(Policy(loaded, engine, thread), channel).run()
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

    def __init__(self, policy: Policy, channel: Channel) -> None:
        self._policy = policy
        self._channel = channel
        self._learners: list[Learner] = []
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
                    learning, call = values
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
        """Make calls until the turn ends. On the torch thread."""
        while (call := self._calls.get()) is not None:
            self._call(*torch.load(io.BytesIO(call), map_location=self._policy.model.device, weights_only=False))

    def _on_turn_end(self, turn: Future[None]) -> None:
        self._failure = turn.exception()
        if self._failure is not None:
            logger.error("a turn of this rank failed", exc_info=self._failure)
            self._channel.send(("failed", first_line(self._failure)))

    def _call(self, target: Any, method: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        """Call a method of the policy (None), of a learner (by its number) or of a scorer (by its arguments)."""
        called: Any = self._policy
        if isinstance(target, int):
            called = self._learners[target]
        elif target is not None:
            adapter, scorer_options = target
            called = Scorer(self._policy.model, adapter, **scorer_options)
        result = getattr(called, method)(*arguments, **options)
        if isinstance(result, Learner):
            self._learners.append(result)
