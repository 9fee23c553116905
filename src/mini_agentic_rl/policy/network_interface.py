"""The network interface that ranks on several nodes reach each other by.

gloo listens where the name of its own node leads, which many systems say is the loopback: other nodes then find nobody
there. The way to the first rank's node leads through an interface that they reach as well.
"""

from __future__ import annotations

import os
import socket
from typing import Final

import psutil

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
