"""Limits that a process sets for itself before it becomes the command; its children inherit them."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

from . import landlock, seccomp

_SET_PDEATHSIG = 1
_NOBODY: Final = 65534
_READ_ALL, _SYS_PTRACE = 1 << 2, 1 << 19
_KEEP_CAPABILITIES, _AMBIENT, _RAISE = 8, 47, 2
_CAPABILITIES_VERSION: Final = 0x20080522
_PROCESSES_BEYOND = 4
"""Limit of all processes of this user, as a multiple of the limit of a rollout."""


def confine(limits: Mapping[str, Any], files: Mapping[str, Any] | None, user: tuple[int, int] | None) -> None:
    """Limit this process.

    Args:
        limits: bytes of memory (`memory`) and of a file (`file`), processor seconds (`cpu_seconds`), and `processes`;
            missing values are not limited.
        files: the arguments of `landlock.restrict`, which needs kernel support.
        user: see `user_without_rights`.

    Raises:
        OSError: the kernel refuses.
    """
    if user is not None:
        _drop_rights(*user)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if "file" in limits:
        _lower(resource.RLIMIT_FSIZE, int(limits["file"]))
    if "cpu_seconds" in limits:
        _lower(resource.RLIMIT_CPU, int(limits["cpu_seconds"]) + 1)
    if "memory" in limits and sys.platform == "linux":  # RLIMIT_AS would stop programs that only reserve memory
        _lower(resource.RLIMIT_DATA, int(limits["memory"]))
    if "processes" in limits:
        # it does not apply to root
        _lower(resource.RLIMIT_NPROC, _PROCESSES_BEYOND * int(limits["processes"]) + _threads_of_user())
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and the command would inherit this
        signal.signal(number, signal.SIG_DFL)
    if files is not None:
        if landlock.version():
            landlock.restrict(files["readable"], files["listable"], files["writable"], files["ports"])
        if seccomp.is_known():
            seccomp.restrict(only_tcp=files["ports"] is not None)


def user_without_rights(paths: Iterable[str]) -> tuple[int, int] | None:
    """Return the user id and the capabilities for a command of root; None if this process is not root's.

    The user is 65534. If that user cannot read these paths, it gets the capability to read all files. If this process
    may not measure processes of other users, the user stays 0, without capabilities.
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        return None
    with open("/proc/self/status", encoding="utf-8") as file:
        effective = next(line for line in file if line.startswith("CapEff:"))
    if not int(effective.split()[1], 16) & _SYS_PTRACE:
        return 0, 0
    there = [path for path in paths if os.path.exists(path)]
    group = os.getegid()
    try:
        os.setegid(_NOBODY)
        os.seteuid(_NOBODY)
        return _NOBODY, 0 if all(os.access(path, os.R_OK, effective_ids=True) for path in there) else _READ_ALL
    except OSError:  # a container without such a user
        return 0, 0
    finally:
        os.seteuid(0)
        os.setegid(group)


def _drop_rights(user: int, capabilities: int) -> None:
    """Become a user, with no other capabilities and without the groups of root."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_KEEP_CAPABILITIES, 1, 0, 0, 0)
    if user:
        for output in (1, 2):  # it may open /dev/stdout and /dev/stderr again
            os.fchown(output, user, user)
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    header, kept = struct.pack("=Ii", _CAPABILITIES_VERSION, 0), struct.pack("=6I", *[capabilities] * 3, 0, 0, 0)
    if libc.capset(ctypes.create_string_buffer(header), kept):  # with no_new_privs it cannot gain others back
        raise OSError(ctypes.get_errno(), "capset")
    if capabilities and libc.prctl(_AMBIENT, _RAISE, capabilities.bit_length() - 1, 0, 0):
        raise OSError(ctypes.get_errno(), "ambient capability")


def _lower(which: int, value: int) -> None:
    hard = resource.getrlimit(which)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def _threads_of_user() -> int:
    """Return the number of processes and threads of this user; 0 without /proc."""
    count = 0
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == os.getuid():
                    count += len(os.listdir(f"/proc/{name}/task"))
            except OSError:  # it has ended
                continue
    return count
