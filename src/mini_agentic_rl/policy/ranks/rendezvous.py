"""How ranks meet, and the messages between rank 0 and each other rank, over torch.distributed.

    store          the launcher's TCPStore: who has come, with which configuration
    process group  gloo between all ranks: messages of sampling, each followed within `rank_timeout` by the next one
    RankGroup      a second group, with NCCL between cards: commands, shards, gradients

Messages are pickled, and nothing authenticates them, as with any torch.distributed program: start ranks on a network
that you trust. Ranks of one node listen at the loopback address only.
"""

from __future__ import annotations

import io
import itertools
import json
import logging
import pickle
import queue
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from ..errors import PolicyError
from ..launch import Launch, choose_interface
from ..load import resolve_device
from ..machine import take_share
from ..rank_group import RankGroup
from ..settings import RankSettings

logger = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.25
_HEARTBEATS: Final = 4
"""Heartbeats of a rank that has nothing to send, within the seconds of silence that end a channel."""
_HEARTBEAT: Final = 0
_END: Final = -1

_runs = itertools.count()


class RankLostError(PolicyError):
    """Report that a rank has gone, so that the run cannot go on."""


def open_store(launch: Launch, seconds: float) -> Store:
    """Return the store in which the ranks meet for the next run of this process.

    Raises:
        RankLostError: it cannot be reached within so many seconds.
    """
    try:
        store, _, _ = next(rendezvous("env://", launch.rank, launch.size, timeout=timedelta(seconds=seconds)))
    except Exception as error:  # torch raises errors of several kinds
        raise RankLostError(f"the ranks find no place to meet at {launch.address}: {_first_line(error)}") from error
    return PrefixStore(f"run_{next(_runs)}", store)


def wait_for_ranks(launch: Launch, store: Store, configuration: Mapping[str, Any], seconds: float) -> None:
    """Wait on rank 0 until all other ranks have come, and let them start.

    Args:
        configuration: of the run; every rank needs the same.

    Raises:
        RankLostError: some have not come within so many seconds.
        PolicyError: a rank was started with another configuration.
    """
    others = range(1, launch.size)
    try:
        store.wait([f"rank_{rank}" for rank in others], timedelta(seconds=seconds))
    except Exception as error:  # torch raises errors of several kinds
        missing = ", ".join(str(rank) for rank in others if not store.check([f"rank_{rank}"]))
        raise RankLostError(f"rank {missing} of {launch.size} has not come in {seconds:g} seconds") from error
    refusal = ""
    for rank in others:
        if names := _differences(configuration, json.loads(store.get(f"rank_{rank}"))):
            refusal = f"rank {rank} was started with other settings: {names}; give all ranks the same"
            break
    store.set("start", refusal)
    if refusal:
        raise PolicyError(refusal)


def wait_for_start(launch: Launch, store: Store, configuration: Mapping[str, Any], stopped: Callable[[], bool]) -> bool:
    """Wait on another rank until rank 0 lets all ranks start; return False if `stopped` was true before.

    Raises:
        RankLostError: rank 0 has gone.
        PolicyError: this rank has another configuration, or its number is taken.
    """
    try:
        if store.add(f"arrivals_{launch.rank}", 1) > 1:
            raise PolicyError(f"a second rank {launch.rank} has come: start each rank once")
        store.set(f"rank_{launch.rank}", json.dumps(configuration, default=str))
        while not store.check(["start"]):
            if stopped():
                return False
            time.sleep(_POLL_SECONDS)
        refusal = store.get("start").decode()
    except PolicyError:
        raise
    except Exception as error:  # the store's host has gone; torch raises errors of several kinds
        raise RankLostError(f"rank 0 has gone before the run began ({_first_line(error)})") from error
    if refusal:
        raise PolicyError(refusal)
    return True


def join_group(launch: Launch, store: Store, settings: RankSettings, device: torch.device) -> RankGroup:
    """Join the process group of a run, on the torch thread, which gets its share of the cores.

    Raises:
        RankLostError: a rank cannot be reached.
    """
    take_share(launch.local_size)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    choose_interface("127.0.0.1" if launch.on_one_node else launch.address)
    try:
        return RankGroup.join(
            store, launch.rank, launch.size, device, silence=settings.rank_timeout, seconds=settings.group_seconds
        )
    except (RuntimeError, ValueError) as error:
        raise RankLostError(f"the ranks cannot reach each other: {_first_line(error)}") from error


def device_of(launch: Launch, device: str) -> torch.device:
    """Return the device of one rank: of several cards of a node each rank has its own.

    Raises:
        PolicyError: there are fewer cards than ranks.
    """
    chosen = resolve_device(device)
    if chosen.type != "cuda":
        return chosen
    if chosen.index is not None and launch.local_size > 1:
        raise PolicyError(f"{device} is one card, for {launch.local_size} ranks: use `device=cuda`", setting="device")
    cards = torch.cuda.device_count()
    if launch.local_size > cards:
        raise PolicyError(
            f"{launch.local_size} ranks on a node with {cards} cards: start as many ranks as there are cards, or use "
            "`device=cpu`",
            setting="device",
        )
    return torch.device("cuda", launch.local_rank)


class Channel:
    """Messages to and from one other rank, in order, over the default process group.

    A rank that dies closes its connections. One that stands still, or whose host vanishes, falls silent, and counts as
    gone after `silence` seconds, the time limit of the process group.

    Args:
        peer: number of the other rank.
        silence: seconds without a message or a heartbeat after which it counts as gone.
    """

    def __init__(self, peer: int, silence: float) -> None:
        self._peer = peer
        self._silence = silence
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._on_message: Callable[[Any], None] = lambda message: None
        self._on_lost: Callable[[str], None] = lambda reason: None
        self._reader = threading.Thread(target=self._read, name=f"reads rank {peer}", daemon=True)
        self._writer = threading.Thread(target=self._write, name=f"writes rank {peer}", daemon=True)

    def start(self, on_message: Callable[[Any], None], on_lost: Callable[[str], None]) -> None:
        """Begin to receive.

        Args:
            on_message: called with each message, one after another, on a thread of the channel.
            on_lost: called once with the reason if the other rank goes before `close`; on a thread of the channel.
        """
        self._on_message, self._on_lost = on_message, on_lost
        self._reader.start()
        self._writer.start()

    def send(self, message: Any) -> None:
        """Send a message; from any thread, without waiting. Messages to a rank that has gone are dropped."""
        self._outgoing.put(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))

    def close(self, seconds: float = 5.0) -> bool:
        """Send what waits, end, and return whether the other rank ends too; wait so long for each of the two."""
        with self._lock:
            self._closed = True
        self._outgoing.put(None)
        for thread in (self._writer, self._reader):
            if thread is not threading.current_thread() and thread.ident is not None:
                thread.join(seconds)
        return not (self._writer.is_alive() or self._reader.is_alive())

    def _read(self) -> None:
        size = torch.empty(1, dtype=torch.int64)
        try:
            while True:
                self._receive(size)
                count = int(size)
                if count == _END:
                    break
                if count == _HEARTBEAT:
                    continue
                payload = torch.empty(count, dtype=torch.uint8)
                self._receive(payload)
                stream = io.BytesIO(payload.numpy().tobytes())
                while stream.tell() < count:
                    self._on_message(pickle.load(stream))
        except ConnectionError as error:
            self._lose(str(error))
        except Exception as error:  # whatever a handler raises: later messages would never be handled
            logger.exception("a message of rank %d failed", self._peer)
            self._lose(f"sent what cannot be used ({error})")
        else:
            self._lose("has closed its connection")

    def _receive(self, tensor: torch.Tensor) -> None:
        try:
            dist.recv(tensor, self._peer)
        except RuntimeError as error:
            silent = "timed out" in str(error).lower()
            raise ConnectionError(
                f"was silent for {self._silence:g} seconds (`rank_timeout`)" if silent else "has closed its connection"
            ) from error

    def _write(self) -> None:
        closing = False
        try:
            while not closing:
                batch, closing = self._next_batch()
                if batch or not closing:
                    dist.send(torch.tensor([len(batch)]), self._peer)  # no bytes are a heartbeat
                if batch:
                    dist.send(torch.frombuffer(bytearray(batch), dtype=torch.uint8), self._peer)
            dist.send(torch.tensor([_END]), self._peer)
        except RuntimeError:  # the reader learns why, and reports it
            pass

    def _next_batch(self) -> tuple[bytes, bool]:
        """Return the messages that wait, or none when a heartbeat is due; and whether they are the last."""
        batch: list[bytes] = []
        try:
            message = self._outgoing.get(timeout=self._silence / _HEARTBEATS)
            while message is not None:
                batch.append(message)
                message = self._outgoing.get_nowait()
        except queue.Empty:
            return b"".join(batch), False
        return b"".join(batch), True

    def _lose(self, reason: str) -> None:
        with self._lock:
            first, self._closed = not self._closed, True
        self._outgoing.put(None)
        if first:
            self._on_lost(reason)


def _differences(here: Mapping[str, Any], there: Mapping[str, Any], prefix: str = "") -> str:
    """Return the names of settings that differ, with commas."""
    here = json.loads(json.dumps(here, default=str))
    names = []
    for name in sorted({*here, *there}):
        one, other = here.get(name), there.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            names += [nested] if (nested := _differences(one, other, f"{prefix}{name}.")) else []
        elif one != other:
            names.append(f"{prefix}{name}")
    return ", ".join(names)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
