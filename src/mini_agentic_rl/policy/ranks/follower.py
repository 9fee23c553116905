"""A rank that follows: it samples what rank 0 sends it, and in turns does what rank 0 tells it, until it is let go.

    messages ─► samples ─► engine ─► deltas back
             └► a turn: begin, commands …, end, as one job of the torch thread ─► answers back

It writes no file and shows nothing; what it logs goes to rank 0.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import torch
from torch.distributed.distributed_c10d import Store

from ...errors import UserError
from ...logging import PACKAGE_LOGGER
from ...processes import asked_to_stop
from ...tokens import TokenDelta, TokenRequest
from ..errors import PolicyError
from ..launch import Launch, choose_interface
from ..machine import take_share
from ..policy import Policy
from ..rank_group import RankGroup
from ..settings import RankSettings
from ..step_batch import RunningSequence
from ..torch_thread import TorchThread
from .commands import Commands
from .door import come_in, meeting_place
from .link import RankLink, RankLostError
from .team import end_at_once

logger = logging.getLogger(__name__)

_LOOKS: Final = 0.2
_HEARD_WITHIN: Final = 3.0
_GRACE: Final = 25.0
"""Seconds that rank 0 has, after this rank was asked to stop, to write its checkpoint: launchers give 30."""
_ENDED_AFTER: Final = 60.0


def follow(
    launch: Launch,
    settings: RankSettings,
    about: Mapping[str, Any],
    load: Callable[[TorchThread, RankGroup], Policy],
    device: torch.device,
) -> None:
    """Follow rank 0 through one run.

    Args:
        about: the configuration of the run, which has to be rank 0's.
        load: makes the policy; it computes on the thread that it is given, with the ranks of the group.
        device: where it computes.

    Raises:
        RankLostError: rank 0 has gone.
        UserError: the policy cannot be had here.
    """
    asked = threading.Event()
    with asked_to_stop(asked):
        store = meeting_place(launch, settings.rank_timeout)
        link = come_in(launch, store, about, settings.rank_timeout, asked.is_set)
        if link is not None:
            follower = Follower(link)
            with _logs_go_to(link):
                follower.serve(lambda: join_group(launch, store, settings, device), load, asked)


class Follower:
    """One run of a rank that is not the first."""

    def __init__(self, link: RankLink) -> None:
        self._link = link
        self._policy: Policy | None = None
        self._commands: Commands | None = None
        self._orders: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._under_way: dict[int, RunningSequence] = {}
        self._let_in = threading.Event()
        self._over = threading.Event()
        self._failure: Exception | None = None

    def serve(
        self, join: Callable[[], RankGroup], load: Callable[[TorchThread, RankGroup], Policy], asked: threading.Event
    ) -> None:
        """Load the policy, and do what rank 0 says until it lets this rank go."""
        thread = TorchThread()
        group: RankGroup | None = None
        self._link.start(self._hear, self._lose)
        try:
            if self._is_let_in(asked):
                group = thread.call(join)
                self._policy = load(thread, group)
                self._commands = Commands(self._policy, group)
                self._link.send(("ready",))
                self._wait(asked)
        except Exception as error:
            if self._failure is None:
                self._link.send(("failed", _in_one_line(error)))
                raise
        finally:
            ending = threading.Timer(_ENDED_AFTER, end_at_once, ["this rank waits for another one that has gone"])
            ending.daemon = True
            ending.start()
            self._link.close()
            if group is not None and self._failure is None:
                thread.call(group.leave)
            thread.close()
            ending.cancel()
        if self._failure is not None:
            raise self._failure

    def _is_let_in(self, asked: threading.Event) -> bool:
        """Wait until all ranks have come; False where this one is to end before."""
        while not self._let_in.wait(_LOOKS):
            if self._over.is_set() or asked.is_set():
                return False
        return True

    def _wait(self, asked: threading.Event) -> None:
        since: float | None = None
        while not self._over.wait(_LOOKS):
            if asked.is_set():  # so is rank 0, which may need this rank until it has written its checkpoint
                since = since or time.monotonic()
                if time.monotonic() - since > _GRACE:
                    return

    def _hear(self, message: tuple[Any, ...]) -> None:
        kind = message[0]
        if kind == "sample":
            self._sample(message[1], message[2])
        elif kind == "cancel":
            sequence = self._under_way.get(message[1])
            if sequence is not None and self._policy is not None:
                self._policy.engine.cancel(sequence)
        elif kind == "begin":
            self._begin(learning=message[1])
        elif kind == "join":
            self._let_in.set()
        elif kind == "goodbye":
            self._over.set()
        else:
            self._orders.put(message)

    def _lose(self, reason: str) -> None:
        if self._over.is_set():  # it has said goodbye
            return
        if self._failure is None:
            self._failure = RankLostError(f"rank 0 {reason}: this rank cannot go on without it")
        self._orders.put(("end",))
        self._over.set()

    def _sample(self, number: int, request: TokenRequest) -> None:
        if self._policy is None:
            return
        policy, link = self._policy, self._link

        def on_delta(delta: TokenDelta) -> None:
            link.send(("delta", number, delta))
            if delta.finish_reason is not None:
                self._under_way.pop(number, None)
                link.send(("counters", replace(policy.engine.counters)))

        try:
            self._under_way[number] = policy.engine.submit(request, on_delta)
        except PolicyError as error:
            link.send(("delta", number, TokenDelta(finish_reason="cancelled", failure=str(error))))

    def _begin(self, *, learning: bool) -> None:
        if self._policy is not None:
            self._policy.submit_turn(self._turn, learning=learning).add_done_callback(self._turned)

    def _turn(self) -> None:
        """Do what is told until the turn ends. On the torch thread."""
        if self._commands is None:
            raise RuntimeError("a turn before the policy is there")
        while (order := self._orders.get())[0] == "do":
            _, number, command, arguments = order
            self._link.send(("done", number, self._commands.do(command, arguments)))

    def _turned(self, future: Any) -> None:
        error = future.exception()
        if isinstance(error, RuntimeError):  # a sum breaks when rank 0 goes, which is heard a moment later
            self._over.wait(_HEARD_WITHIN)
        if error is None or self._failure is not None:
            return
        logger.error("a turn of this rank failed", exc_info=error)
        self._failure = error if isinstance(error, UserError) else RankLostError(f"this rank failed: {error}")
        self._link.send(("failed", _in_one_line(error)))
        self._over.set()


def join_group(launch: Launch, store: Store, settings: RankSettings, device: torch.device) -> RankGroup:
    """Join the process group of a run, on the torch thread, which gets its share of the cores."""
    take_share(launch.local_size)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not launch.on_one_node:
        choose_interface(launch.address)
    return RankGroup.join(store, launch.rank, launch.size, device, settings.group_seconds)


@contextmanager
def _logs_go_to(link: RankLink) -> Iterator[None]:
    """Send what the package logs to rank 0, and nowhere else."""
    package = logging.getLogger(PACKAGE_LOGGER)
    handlers, propagates = package.handlers[:], package.propagate
    package.handlers[:], package.propagate = [_LinkHandler(link)], False
    try:
        yield
    finally:
        package.handlers[:], package.propagate = handlers, propagates


class _LinkHandler(logging.Handler):
    def __init__(self, link: RankLink) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._link = link
        self._process = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        if os.getpid() == self._process:
            self._link.send(("log", self.format(record)))


def _in_one_line(error: BaseException) -> str:
    return " ".join(f"{error}".split()) or type(error).__name__
