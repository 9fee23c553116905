"""Seccomp: refuses system calls of this process and its children (Linux).

Landlock restricts TCP sockets by their port only, and memory and disk are measured in /proc. System calls that would
evade both are refused: other kinds of sockets, data in a SYN (`MSG_FASTOPEN`), `io_uring`, namespaces, threads with
descriptors of their own, and memory that belongs to no process (`memfd`, shared memory without a file, System V
segments, message queues, `O_TMPFILE`, larger pipes). So are limits and priorities of other processes: a limit of
processor time kills like a signal. The error is that of a kernel without the call, for which programs have a fallback.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Final

_SET_NO_NEW_PRIVS, _SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _AND, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_OF_X32: Final = 0x40000000
_ANY: Final = 0xFFFFFFFF
_ARCHITECTURES: Final = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1), "riscv64": (0xC00000F3, 1)}
"""Audit number of an architecture, and its column in `_NUMBERS`."""
_NUMBERS: Final = {
    "open": (2, None),
    "openat": (257, 56),
    "openat2": (437, 437),
    "open_by_handle_at": (304, 265),
    "fcntl": (72, 25),
    "mmap": (9, 222),
    "clone": (56, 220),
    "clone3": (435, 435),
    "unshare": (272, 97),
    "close_range": (436, 436),
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "fanotify_init": (300, 262),
    "vmsplice": (278, 75),
    "prctl": (157, 167),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "listen": (50, 201),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
}
Rule = tuple[str, Sequence[tuple[int, int, int]], int]
"""A system call, conditions on its arguments (number, mask, value), and the error if all hold; 0 allows the call. The
first matching rule decides."""

_UNIX, _IPV4, _NETLINK, _IPV6, _STREAM, _SEQPACKET, _TCP = 1, 2, 16, 10, 1, 5, 6
_KIND: Final = 0xF
_FASTOPEN: Final = 0x20000000
_TEMPORARY: Final = 0o20000000
_SET_PIPE_SIZE: Final = 1031
_SET_DUMPABLE: Final = 4
_SHARED_WITHOUT_FILE: Final = 0x21
_OF_USERS: Final = 0x10000000
_FILES, _THREAD = 0x400, 0x10000
_UNSHARE_FILES: Final = 2
_OF_ITSELF: Final[Sequence[tuple[str, Sequence[tuple[int, int, int]]]]] = (
    *((name, ((0, _ANY, 0),)) for name in ("prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam")),
    *(("sched_setattr", ((0, _ANY, 0),)), ("setpriority", ((0, _ANY, 0), (1, _ANY, 0)))),
    ("ioprio_set", ((0, _ANY, 1), (1, _ANY, 0))),
)
"""System calls that may change any process of this user, and their arguments for the calling one."""
_UNMEASURED: Final[Sequence[Rule]] = (
    *(
        (name, (), errno.ENOSYS)
        for name in (
            *("io_uring_setup", "io_uring_enter", "io_uring_register", "memfd_create", "memfd_secret", "shmget"),
            *("semget", "msgget", "mq_open", "add_key", "request_key", "keyctl", "bpf", "vmsplice", "openat2"),
            *("clone3", "fanotify_init"),
        )
    ),
    ("open", ((1, _TEMPORARY, _TEMPORARY),), errno.EOPNOTSUPP),
    ("openat", ((2, _TEMPORARY, _TEMPORARY),), errno.EOPNOTSUPP),
    ("open_by_handle_at", (), errno.EPERM),
    ("fcntl", ((1, _ANY, _SET_PIPE_SIZE),), errno.EPERM),
    ("prctl", ((0, _ANY, _SET_DUMPABLE),), errno.EPERM),
    ("mmap", ((3, _SHARED_WITHOUT_FILE, _SHARED_WITHOUT_FILE),), errno.EPERM),
    ("clone", ((0, _OF_USERS, _OF_USERS),), errno.EPERM),
    ("clone", ((0, _THREAD | _FILES, _THREAD),), errno.EPERM),
    ("unshare", (), errno.EPERM),
    ("close_range", ((2, _UNSHARE_FILES, _UNSHARE_FILES),), errno.EPERM),
    *(rule for name, own in _OF_ITSELF for rule in ((name, own, 0), (name, (), errno.EPERM))),
)
_BEYOND_TCP: Final[Sequence[Rule]] = (
    *(
        ("socket", ((0, _ANY, family), (1, _KIND, _STREAM), (2, _ANY, protocol)), 0)
        for family in (_IPV4, _IPV6)
        for protocol in (0, _TCP)
    ),
    ("socket", ((0, _ANY, _NETLINK), (2, _ANY, 0)), 0),  # it returns the addresses of this computer
    ("socket", (), errno.EACCES),
    *(("socketpair", ((0, _ANY, _UNIX), (1, _KIND, kind)), 0) for kind in (_STREAM, _SEQPACKET)),
    ("socketpair", (), errno.EACCES),
    ("listen", (), errno.EACCES),
    ("sendto", ((3, _FASTOPEN, _FASTOPEN),), errno.EACCES),
    ("sendmsg", ((2, _FASTOPEN, _FASTOPEN),), errno.EACCES),
    ("sendmmsg", ((3, _FASTOPEN, _FASTOPEN),), errno.EACCES),
)


def is_known() -> bool:
    """Return True if the architecture is known and the kernel supports filters."""
    if sys.platform != "linux" or os.uname().machine not in _ARCHITECTURES:
        return False
    return os.path.exists("/proc/sys/kernel/seccomp")


def restrict(*, only_tcp: bool) -> None:
    """Refuse the calling process memory that is not measured and, with `only_tcp`, every socket but those of TCP that
    connect; for good.

    Raises:
        OSError: the kernel refuses.
    """
    rules = (*_UNMEASURED, *(_BEYOND_TCP if only_tcp else ()))
    program = b"".join(struct.pack("=HBBI", *step) for step in _program(rules, *_ARCHITECTURES[os.uname().machine]))
    kept = ctypes.create_string_buffer(program)
    filter_ = struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(kept))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_SET_SECCOMP, _MODE_FILTER, filter_, 0, 0):
        raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")


def _program(rules: Sequence[Rule], architecture: int, column: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the steps of a filter: code, steps to skip if true and if false, and a number."""
    refuse = (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)
    yield from ((_LOAD, 0, 0, 4), (_IF_EQUAL, 1, 0, architecture), refuse)
    yield from ((_LOAD, 0, 0, 0), (_IF_AT_LEAST, 0, 1, _OF_X32), refuse)
    for name, conditions, error in rules:
        number = _NUMBERS[name][column]
        if number is None:
            continue
        last = 3 * len(conditions) + 1
        yield from ((_LOAD, 0, 0, 0), (_IF_EQUAL, 0, last, number))
        for place, (argument, mask, value) in enumerate(conditions):
            # the lower half of the argument, which is all that the kernel reads of these
            yield from ((_LOAD, 0, 0, 16 + 8 * argument), (_AND, 0, 0, mask))
            yield (_IF_EQUAL, 0, last - 3 * (place + 1), value)
        yield (_RETURN, 0, 0, _ERRNO | error if error else _ALLOW)
    yield (_RETURN, 0, 0, _ALLOW)
