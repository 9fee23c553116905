"""Rendezvous of the ranks: the launcher's TCPStore, then two process groups, then the model, then messages.

store          the launcher's TCPStore: each rank writes its configuration, and refuses to start if another one differs
process group  gloo between all ranks: the messages of `Channel`, each followed within `rank_timeout` by the next one
RankGroup      a second group, with NCCL between GPUs: gradients, weights, and layers that are sharded
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import queue
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from transformers import PreTrainedModel

from ...errors import first_line
from ...tokens import CompletionRecord, TokenTree, pack
from ..errors import PolicyError
from ..load import load_model, resolve_device
from ..machine import take_share
from ..model import PolicyModel
from ..rank_group import RankGroup
from ..settings import RankSettings
from ..tree_pass import Scorer
from . import Launch

_MEET_SECONDS: Final = 300.0
"""Seconds within which all ranks have to arrive."""
_POLL_SECONDS: Final = 0.25

_runs = itertools.count()


class RankLostError(PolicyError):
    """Report that a rank is lost, so that the run cannot continue."""


def meet(launch: Launch, settings: RankSettings, configuration: Mapping[str, Any]) -> Store:
    """Wait until all ranks have arrived, and return the store of the run.

    Args:
        configuration: of the run; it has to be the same on every rank.

    Raises:
        RankLostError: rank 0 cannot be reached, or a rank has not arrived.
        PolicyError: a rank was started with another configuration.
    """
    names = [f"rank_{rank}" for rank in range(launch.size)]
    try:
        limit = timedelta(seconds=settings.rank_timeout)
        store, _, _ = next(rendezvous("env://", launch.rank, launch.size, timeout=limit))
        store = PrefixStore(f"run_{next(_runs)}", store)
        store.set(names[launch.rank], json.dumps(configuration, default=str))
        end = time.monotonic() + _MEET_SECONDS
        # Polled, so that a signal ends the wait.
        while (missing := [name for name in names if not store.check([name])]) and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        configurations = [_flat(json.loads(store.get(name))) for name in names] if not missing else []
    except Exception as error:  # torch raises errors of several kinds
        raise RankLostError(
            f"the ranks cannot meet at {launch.address} (`MASTER_ADDR`, `MASTER_PORT`): {first_line(error)}"
        ) from error
    if missing:
        absent = ", ".join(name.removeprefix("rank_") for name in missing)
        raise RankLostError(f"rank {absent} of {launch.size} has not arrived within {_MEET_SECONDS:g} seconds")
    first = configurations[0]
    for rank, other in enumerate(configurations):
        differing = sorted(name for name in first.keys() | other.keys() if first.get(name) != other.get(name))
        if differing:
            raise PolicyError(
                f"rank {rank} was started with other settings: {', '.join(differing)}; give all ranks the same"
            )
    return store


def join_group(launch: Launch, store: Store, settings: RankSettings, device: torch.device) -> RankGroup:
    """Join the process groups of a run, on the torch thread, which gets its share of the cores.

    Raises:
        RankLostError: a rank cannot be reached.
    """
    take_share(launch.local_size)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if launch.local_size == launch.size:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    try:
        dist.init_process_group(
            "gloo",
            store=store,
            rank=launch.rank,
            world_size=launch.size,
            timeout=timedelta(seconds=settings.rank_timeout),
        )
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        # Longer: a rank waits for the others within a step, whose shares differ in length.
        group = dist.new_group(backend=backend, timeout=timedelta(seconds=30 * settings.rank_timeout))
    except (RuntimeError, ValueError) as error:
        raise RankLostError(
            f"the ranks cannot reach each other (`GLOO_SOCKET_IFNAME` names the network interface that gloo uses): "
            f"{first_line(error)}"
        ) from error
    return RankGroup(launch.rank, launch.size, device, group)


def device_of(launch: Launch, device: str) -> torch.device:
    """Return the device of a rank: on a node with several GPUs, each rank has its own.

    Raises:
        PolicyError: there are fewer GPUs than ranks.
    """
    chosen = resolve_device(device)
    if chosen.type != "cuda":
        return chosen
    if chosen.index is not None and launch.local_size > 1:
        raise PolicyError(f"{device} is one GPU, for {launch.local_size} ranks: use `device=cuda`", setting="device")
    gpus = torch.cuda.device_count()
    if launch.local_size > gpus:
        raise PolicyError(
            f"{launch.local_size} ranks on a node with {gpus} GPUs: start as many ranks as there are GPUs, or use "
            "`device=cpu`",
            setting="device",
        )
    return torch.device("cuda", launch.local_rank)


def load_on_rank(
    model: str | PreTrainedModel, options: Mapping[str, Any], settings: RankSettings, group: RankGroup
) -> PolicyModel:
    """Return the model on a rank's device; with `shard` this rank's part, with which all ranks have computed once."""
    loaded = load_model(model, **{**options, "device": str(group.device)}, shard_over=group if settings.shard else None)
    if loaded.shards is not None:
        record = CompletionRecord(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.float32))
        # Before `ranks` is set: every rank computes all of it.
        Scorer(loaded, None, max_tokens=1, head_rows=1).logprobs(pack([TokenTree.of([[record]])]))
    loaded.ranks = group
    return loaded


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Return nested settings as a flat mapping with dotted names."""
    if not isinstance(value, dict):
        return {name: value}
    prefix = f"{name}." if name else ""
    return {path: leaf for key, each in value.items() for path, leaf in _flat(each, f"{prefix}{key}").items()}


_END_SECONDS: Final = 60.0
"""Seconds after a loss in which a process ends by itself: its torch thread may wait for the lost rank for ever."""
CLOSE_SECONDS: Final = 5.0
_HEARTBEATS: Final = 4
"""Heartbeats of a rank that has nothing to send, within the seconds of silence that end a channel."""


class Channel:
    """Messages to and from one other rank, in order, over the default process group of torch.distributed (gloo).

    Rank 0 sends sample, cancel, call, end (of a turn) and failed; the others send delta and failed.

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
