"""The door of rank 0: where it is and the key to it stand in the launcher's own store, and each rank comes in once."""

from __future__ import annotations

import itertools
import json
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from ..errors import PolicyError
from ..launch import Launch
from .link import RankLink, RankLostError, prove, receive

logger = logging.getLogger(__name__)

_KEY: Final = "mini-agentic-rl/door"
_HANDSHAKE: Final = 20.0
_LOOKS: Final = 1.0
"""Seconds between two looks at whether the door is there, or whether this process was asked to stop."""
_LONGEST_HELLO: Final = 1 << 24

_runs = itertools.count()


def meeting_place(launch: Launch, seconds: float) -> Store:
    """Return the store in which the ranks find each other, for the next run of this process.

    Raises:
        RankLostError: it cannot be reached.
    """
    try:
        found, _, _ = next(rendezvous("env://", launch.rank, launch.size, timeout=timedelta(seconds=seconds)))
    except Exception as error:  # torch raises errors of several kinds
        raise RankLostError(f"the ranks find no place to meet at {launch.address}: {_first_line(error)}") from error
    return PrefixStore(f"run_{next(_runs)}", found)


def let_in(launch: Launch, store: Store, about: Mapping[str, Any], silence: float, seconds: float) -> list[RankLink]:
    """Return links to ranks 1, 2 …, once all of them have come.

    Args:
        about: the configuration, which has to be that of every rank.

    Raises:
        RankLostError: some have not come within so many seconds.
        PolicyError: a rank was started with another configuration.
    """
    key = secrets.token_bytes(32)
    host = "127.0.0.1" if launch.on_one_node else "0.0.0.0"  # other nodes are to reach it
    door = socket.create_server((host, 0), backlog=launch.size)
    links: dict[int, RankLink] = {}
    refused: list[PolicyError] = []
    came = threading.Condition()

    def greet(connection: socket.socket) -> None:
        try:
            rank, theirs = _hello(connection, key)
        except (OSError, EOFError, ValueError) as error:
            logger.warning("somebody without the key was not let in (%s)", error)
            connection.close()
            return
        with came:
            if rank in links or not 0 < rank < launch.size:
                refused.append(PolicyError(f"a second rank {rank} has come: start each rank once"))
            elif other := _differences(about, theirs):
                refused.append(
                    PolicyError(f"rank {rank} was started with other settings: {other}; give all ranks the same")
                )
            links[rank] = RankLink(connection, f"rank {rank}", silence)
            came.notify()

    def accept() -> None:
        while True:
            try:
                connection, _ = door.accept()
            except OSError:  # the door is closed
                return
            connection.settimeout(_HANDSHAKE)
            threading.Thread(target=greet, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, name="door", daemon=True).start()
    address = launch.address if not launch.on_one_node else "127.0.0.1"
    store.set(_KEY, json.dumps({"host": address, "port": door.getsockname()[1], "key": key.hex()}))
    try:
        with came:
            came.wait_for(lambda: refused or len(links) == launch.size - 1, timeout=seconds)
            if refused:
                raise refused[0]
            if len(links) < launch.size - 1:
                missing = [str(rank) for rank in range(1, launch.size) if rank not in links]
                raise RankLostError(f"rank {', '.join(missing)} of {launch.size} has not come in {seconds:g} seconds")
    except PolicyError:
        for link in links.values():
            link.close()
        raise
    finally:
        door.close()
    return [links[rank] for rank in range(1, launch.size)]


def come_in(
    launch: Launch, store: Store, about: Mapping[str, Any], silence: float, stopped: Callable[[], bool]
) -> RankLink | None:
    """Return the link to rank 0, once its door is there; None where `stopped` was true before.

    Raises:
        RankLostError: rank 0 has gone, or does not let this one in.
    """
    while True:
        if stopped():
            return None
        try:
            if store.check([_KEY]):
                door = json.loads(store.get(_KEY))
                break
        except Exception as error:  # the store's host has gone; torch raises errors of several kinds
            raise RankLostError(f"rank 0 has gone before the run began ({_first_line(error)})") from error
        time.sleep(_LOOKS / 4)
    try:
        connection = socket.create_connection((door["host"], door["port"]), timeout=_HANDSHAKE)
        if not prove(connection, bytes.fromhex(door["key"]), asks=True):
            raise RankLostError(f"what listens at {door['host']}:{door['port']} is not rank 0")
        hello = json.dumps({"rank": launch.rank, "about": about}, default=str).encode()
        connection.sendall(len(hello).to_bytes(8, "big") + hello)
    except (OSError, EOFError) as error:
        raise RankLostError(f"rank 0 cannot be reached at {door['host']}:{door['port']}: {error}") from error
    return RankLink(connection, "rank 0", silence)


def _hello(connection: socket.socket, key: bytes) -> tuple[int, dict[str, Any]]:
    if not prove(connection, key, asks=False):
        raise ValueError("it has another key")
    size = int.from_bytes(receive(connection, 8), "big")
    if size > _LONGEST_HELLO:
        raise ValueError("it says too much")
    hello = json.loads(receive(connection, size))
    return int(hello["rank"]), dict(hello["about"])


def _differences(own: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = "") -> str:
    """Return the names of what differs, with commas."""
    own = json.loads(json.dumps(own, default=str))
    names = []
    for name in sorted({*own, *theirs}):
        here, there = own.get(name), theirs.get(name)
        if isinstance(here, dict) and isinstance(there, dict):
            names += [found] if (found := _differences(here, there, f"{prefix}{name}.")) else []
        elif here != there:
            names.append(f"{prefix}{name}")
    return ", ".join(names)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
