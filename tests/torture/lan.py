"""Hosts on a network of their own: Linux network namespaces on one bridge, with this machine as a further host.

It needs to be root and to have iproute2. Elsewhere all hosts are this machine, which `lan` says loudly.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_CLONE_NEWNET = 0x40000000
"""Of Linux's sched.h."""


@dataclass(frozen=True)
class Lan:
    """Addresses of the hosts, and the namespaces that processes of each run in."""

    here: str
    """Address of this machine."""
    addresses: Mapping[str, str]
    namespaces: Mapping[str, str] = field(default_factory=dict)
    """Files of the namespaces; empty where all hosts are this machine."""

    def entering(self, host: str) -> Callable[[], None] | None:
        """Return the `setup` of a `PythonProcess` that moves it to a host."""
        namespace = self.namespaces.get(host)
        return functools.partial(_enter, namespace) if namespace else None

    def cut_off(self, host: str, *, connected: bool) -> None:
        """Pull a host's cable, or put it back."""
        name = os.path.basename(self.namespaces[host])
        _ip("-n", name, "link", "set", "eth0", "up" if connected else "down")


@contextlib.contextmanager
def lan(*hosts: str) -> Iterator[Lan]:
    """Make a network with these hosts; it is gone afterwards."""
    if not _allowed():
        warnings.warn(
            "no network namespaces here (they need Linux, root and iproute2): all hosts are the loopback, and what a "
            "network does to them is left unchecked",
            stacklevel=2,
        )
        yield Lan("127.0.0.1", dict.fromkeys(hosts, "127.0.0.1"))
        return
    number = os.getpid() % 60_000
    subnet, bridge, names = f"10.{64 + number // 250 % 64}.{number % 250}", f"agl{number}", []
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{subnet}.1/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        addresses = {}
        for index, host in enumerate(hosts):
            name, cable = f"agl-{number}-{host}", f"agl{number}p{index}"
            _ip("netns", "add", name)
            names.append(name)
            _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", cable, "master", bridge, "up")
            addresses[host] = f"{subnet}.{index + 2}"
            _ip("-n", name, "addr", "add", f"{addresses[host]}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield Lan(f"{subnet}.1", addresses, dict(zip(hosts, (f"/run/netns/{name}" for name in names), strict=True)))
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)
        subprocess.run(["ip", "link", "del", bridge], check=False)


def _enter(network: str) -> None:
    """Move this thread, the only one yet, into a network namespace; `os.setns` needs Python 3.12."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(network) as namespace:
        if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {network}")


def _allowed() -> bool:
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"agl-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "del", name], check=False)
    return made


def _ip(*words: str) -> None:
    command: Sequence[str] = ["ip", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
