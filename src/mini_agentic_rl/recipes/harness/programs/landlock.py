"""Landlock: restricts what this process and its children may read, write, connect to and signal (Linux).

The C library has no wrapper of the kernel's interface (`man 7 landlock`), so the system calls are made by number, which
is the same on every architecture. The interface has versions: files from 1, TCP ports from 4, signals and abstract
sockets from 6. Restrictions of later versions than `version()` are not applied.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterable, Sequence
from typing import Final

_CREATE, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PATH_BENEATH, _NET_PORT = 1, 2
_SET_NO_NEW_PRIVS: Final = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = (1 << bit for bit in range(4))
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_OF_FILES: Final = {1: (1 << 13) - 1, 2: _REFER, 3: _TRUNCATE, 5: _IOCTL_DEV}
"""Rights to files that each version added."""
_BIND_TCP, _CONNECT_TCP = 1 << 0, 1 << 1
_SIGNALS_AND_SOCKETS: Final = 3

READ: Final = _EXECUTE | _READ_FILE | _READ_DIR
LIST: Final = _READ_DIR
_TO_ONE_FILE: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV

NETWORK_VERSION: Final = 4
"""Version from which TCP ports can be restricted."""
SCOPE_VERSION: Final = 6
"""Version from which signals to processes outside can be refused."""


def version() -> int:
    """Return the kernel's version of the interface; 0 without it."""
    if sys.platform != "linux":
        return 0
    return max(0, int(_libc().syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))))


def restrict(
    readable: Iterable[str], listable: Iterable[str], writable: Iterable[str], ports: Sequence[int] | None
) -> None:
    """Restrict the calling process permanently. Missing paths are skipped.

    Args:
        readable: files and folders that may be read and executed.
        listable: folders that may be listed, with their subfolders.
        writable: files and folders with all rights.
        ports: TCP ports that may be connected to, while none may be bound; None does not restrict the network.

    Raises:
        OSError: the kernel refuses.
    """
    known = version()
    rights = 0
    for since, more in _OF_FILES.items():
        rights |= more if known >= since else 0
    network = _BIND_TCP | _CONNECT_TCP if ports is not None and known >= NETWORK_VERSION else 0
    scope = _SIGNALS_AND_SOCKETS if known >= SCOPE_VERSION else 0
    attributes = struct.pack("=QQQ", rights, network, scope)[: 8 if known < 4 else 16 if known < 6 else 24]
    ruleset = _call(_CREATE, attributes, len(attributes), 0)
    try:
        for paths, allowed in ((readable, READ), (listable, LIST), (writable, rights)):
            for path in paths:
                _allow(ruleset, path, allowed & rights)
        for port in ports or () if network else ():
            _call(_ADD_RULE, ruleset, _NET_PORT, struct.pack("=QQ", _CONNECT_TCP, port), 0)
        if _libc().prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "no_new_privs")
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, allowed: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(path):
            allowed &= _TO_ONE_FILE
        if allowed:
            _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", allowed, opened), 0)
    finally:
        os.close(opened)


def _call(number: int, *arguments: int | bytes) -> int:
    given = [ctypes.c_char_p(one) if isinstance(one, bytes) else ctypes.c_size_t(one) for one in arguments]
    result = int(_libc().syscall(number, *given))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"landlock: {os.strerror(ctypes.get_errno())}")
    return result


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
