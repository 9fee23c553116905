"""The launch of this process: its place among the ranks, and the network interface by which ranks reach each other.

torchrun, `accelerate launch` or a script starts the ranks and sets the environment variables that are read here.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import psutil

from .errors import PolicyError


@dataclass(frozen=True)
class Launch:
    """The place of one rank."""

    rank: int
    """Its number among all; rank 0 runs the loop, the others follow it."""
    size: int
    """Number of ranks, 2 or more."""
    local_rank: int = 0
    """Its number among those of its node."""
    local_size: int = 1
    """Number of ranks on its node."""
    address: str = "127.0.0.1"
    """Host of rank 0, as the others reach it."""
    restarts: int = 0
    """Number of times that the launcher has started all ranks again."""

    @property
    def follows(self) -> bool:
        """True for all ranks but the first."""
        return self.rank > 0

    @property
    def on_one_node(self) -> bool:
        """True if all ranks are on this node."""
        return self.local_size == self.size


def launched(environment: Mapping[str, str] = os.environ) -> Launch | None:
    """Return the place of this process among several ranks; None where it is alone.

    Raises:
        PolicyError: the variables of the launcher contradict each other, or one is missing.
    """
    size = _number(environment, "WORLD_SIZE", 1)
    if size < 2:
        return None
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
    if missing:
        raise PolicyError(
            f"WORLD_SIZE={size}, but {', '.join(missing)} is not set: start the ranks with torchrun, or unset it"
        )
    found = Launch(
        rank=_number(environment, "RANK", 0),
        size=size,
        local_rank=_number(environment, "LOCAL_RANK", 0),
        local_size=_number(environment, "LOCAL_WORLD_SIZE", 1),
        address=environment["MASTER_ADDR"],
        restarts=_number(environment, "TORCHELASTIC_RESTART_COUNT", 0),
    )
    if not (0 <= found.rank < size and 0 <= found.local_rank < found.local_size <= size):
        raise PolicyError(
            f"RANK={found.rank} of WORLD_SIZE={size}, LOCAL_RANK={found.local_rank} of "
            f"LOCAL_WORLD_SIZE={found.local_size}: no such rank"
        )
    return found


def restarted(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the launcher has started all ranks again: they go on from the last checkpoint."""
    launch = launched(environment)
    return launch is not None and launch.restarts > 0


def _number(environment: Mapping[str, str], name: str, otherwise: int) -> int:
    value = environment.get(name) or str(otherwise)
    try:
        return int(value)
    except ValueError:
        raise PolicyError(f"{name}={value!r} is no number: start the ranks with torchrun, or unset it") from None


VARIABLE: Final = "GLOO_SOCKET_IFNAME"
_ANY_PORT: Final = 9


def choose_interface(first_node: str) -> None:
    """Have gloo listen at the interface that leads to the first rank's node, unless GLOO_SOCKET_IFNAME names one."""
    if VARIABLE in os.environ:
        return
    name = interface_towards(first_node)
    if name is not None:
        os.environ[VARIABLE] = name


def interface_towards(host: str) -> str | None:
    """Return the name of the interface that packets to a host leave by; None where that cannot be told."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as packets:
            packets.connect(address)  # nothing is sent
            own = packets.getsockname()[0]
    except OSError:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == own for one in addresses):
            return str(name)
    return None
