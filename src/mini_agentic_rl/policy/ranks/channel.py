"""Messages between rank 0 and one other rank, over the default process group of torch.distributed (gloo).

Messages are pickled, and nothing authenticates them, as with any torch.distributed program: start ranks on a network
that you trust. Ranks of one node listen at the loopback address only.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import torch.distributed as dist

logger = logging.getLogger(__name__)

_HEARTBEATS: Final = 4
"""Heartbeats of a rank that has nothing to send, within the seconds of silence that end a channel."""


class Channel:
    """Messages to and from one other rank, in order.

    A rank that dies closes its connections. One that stands still, or whose host vanishes, falls silent, and counts as
    lost after `silence` seconds.

    Args:
        peer: number of the other rank.
        silence: time limit of the process group, in seconds.
    """

    def __init__(self, peer: int, silence: float) -> None:
        self._peer = peer
        self._silence = silence
        self._outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._threads: list[threading.Thread] = []

    def start(self, on_message: Callable[[Any], None], on_lost: Callable[[str], None]) -> None:
        """Begin to send and receive.

        Args:
            on_message: called with each message, one after another, on a thread of the channel.
            on_lost: called once with the reason if the other rank goes before `close`; on a thread of the channel.
        """
        self._threads = [
            threading.Thread(target=self._write, name=f"writes rank {self._peer}", daemon=True),
            threading.Thread(
                target=self._read, args=(on_message, on_lost), name=f"reads rank {self._peer}", daemon=True
            ),
        ]
        for thread in self._threads:
            thread.start()

    def send(self, message: Any) -> None:
        """Send a message; from any thread, without waiting. Messages to a rank that has gone are dropped."""
        self._outgoing.put(message)

    def close(self, seconds: float = 5.0) -> bool:
        """Send the messages that wait, and end. Return True if the other rank ends too, within twice `seconds`."""
        with self._lock:
            self._closed = True
        self._outgoing.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(seconds)
        return not any(thread.is_alive() for thread in self._threads)

    def _read(self, on_message: Callable[[Any], None], on_lost: Callable[[str], None]) -> None:
        received: list[Any] = [[]]
        reason = "has closed its connection"
        try:
            while received[0] is not None:
                for message in received[0]:
                    on_message(message)
                dist.recv_object_list(received, self._peer)
        except RuntimeError as error:
            if "timed out" in str(error).lower():
                reason = f"was silent for {self._silence:g} seconds (`rank_timeout`)"
        except Exception as error:  # whatever a handler raises: later messages would never be handled
            logger.exception("a message of rank %d failed", self._peer)
            reason = f"sent what cannot be used ({error})"
        with self._lock:
            was_closed, self._closed = self._closed, True
        self._outgoing.put(None)
        if not was_closed:
            on_lost(reason)

    def _write(self) -> None:
        closing = False
        with suppress(RuntimeError):  # the reader learns why, and reports it
            while not closing:
                messages, closing = self._next_messages()
                dist.send_object_list([messages], self._peer)  # an empty list is a heartbeat
            dist.send_object_list([None], self._peer)

    def _next_messages(self) -> tuple[list[Any], bool]:
        """Return the messages that wait, or none when a heartbeat is due; and whether they are the last."""
        messages: list[Any] = []
        with suppress(queue.Empty):
            message = self._outgoing.get(timeout=self._silence / _HEARTBEATS)
            while message is not None:
                messages.append(message)
                message = self._outgoing.get_nowait()
            return messages, True
        return messages, False
