"""Messages between rank 0 and each other rank.

rank 0 sends      sample, cancel, call, end (of a turn), failed
the others send   delta, failed
"""

from __future__ import annotations

import os
import pickle
import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import torch.distributed as dist

from .rendezvous import RankLostError

_END_SECONDS: Final = 60.0
"""Seconds after a loss in which a process ends by itself: its torch thread may wait for the lost rank for ever."""
CLOSE_SECONDS: Final = 5.0
_HEARTBEATS: Final = 4
"""Heartbeats of a rank that has nothing to send, within the seconds of silence that end a channel."""


class Channel:
    """Messages to and from one other rank, in order, over the default process group of torch.distributed (gloo).

    They are pickled, and nothing authenticates them, as with any torch.distributed program. A rank that dies closes its
    connections. A rank that hangs, or whose host is unreachable, counts as lost after `silence` seconds.

    Args:
        peer: number of the other rank.
        silence: time limit of the process group, in seconds.
    """

    def __init__(self, peer: int, silence: float) -> None:
        self._peer = peer
        self._silence = silence
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name=f"writes rank {peer}", daemon=True)
        self._writer.start()

    def send(self, message: Any) -> None:
        """Send a message, from any thread and without waiting. Messages to a lost rank are dropped."""
        self._outgoing.put(pickle.dumps(message))

    def messages(self) -> Iterator[Any]:
        """Yield the messages of the other rank until it closes the channel.

        Raises:
            RankLostError: the other rank is lost before.
        """
        received: list[Any] = [[]]
        while received[0] is not None:
            yield from map(pickle.loads, received[0])
            try:
                dist.recv_object_list(received, self._peer)
            except RuntimeError as error:
                reason = "has closed its connection"
                if "timed out" in str(error).lower():
                    reason = f"was silent for {self._silence:g} seconds (`rank_timeout`)"
                raise RankLostError(f"rank {self._peer} {reason}") from error

    def close(self) -> None:
        """Send the queued messages and close the channel for the other rank, within five seconds."""
        self._outgoing.put(None)
        self._writer.join(CLOSE_SECONDS)

    def _write(self) -> None:
        closing = False
        with suppress(RuntimeError):  # `messages` reports the reason
            while not closing:
                messages, closing = self._next_messages()
                dist.send_object_list([messages], self._peer)  # an empty list is a heartbeat
            dist.send_object_list([None], self._peer)

    def _next_messages(self) -> tuple[list[bytes], bool]:
        """Return the queued messages, or none when a heartbeat is due; and whether they are the last."""
        messages: list[bytes] = []
        with suppress(queue.Empty):
            message = self._outgoing.get(timeout=self._silence / _HEARTBEATS)
            while message is not None:
                messages.append(message)
                message = self._outgoing.get_nowait()
            return messages, True
        return messages, False


def end_later(reason: str) -> threading.Timer:
    """Return a timer that ends the process after a minute."""

    def end() -> None:
        os.write(2, f"error: {reason}; ended at once\n".encode())
        os._exit(1)

    timer = threading.Timer(_END_SECONDS, end)
    timer.daemon = True
    timer.start()
    return timer
