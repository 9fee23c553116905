"""Show the package an operating system like Windows: what that lacks is missing for its code, and for no library.

With the environment variable SIMULATED_PLATFORM=darwin only `sys.platform` and what Linux alone has are hidden.

Python imports this module at its start where the folder is in PYTHONPATH, in child processes too. The package imports
other modules in place of `os`, `sys` and so on: `hasattr(os, "fork")` is false in the package and true in torch, which
runs on Linux here.

Files behave as on Windows as well: one that is open is neither renamed nor removed, and a name has no `:` or `?`.
"""

from __future__ import annotations

import asyncio
import builtins
import errno
import importlib
import os
import signal
import socket
import subprocess
import sys
import time
import types
from typing import Any

PACKAGE = "mini_agentic_rl"
MODULES = {"resource", "fcntl", "pwd", "grp", "termios", "pty", "tty", "posix", "readline", "curses", "syslog"}
SIGNALS = {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM", "SIG_DFL", "SIG_IGN"}
MISSING: dict[types.ModuleType, set[str]] = {
    os: {
        *("fork", "forkpty", "killpg", "setsid", "setpgid", "getpgid", "getpgrp", "getsid", "register_at_fork"),
        *("getuid", "geteuid", "getgid", "getegid", "getgroups", "setuid", "setgid", "initgroups", "umask_of"),
        *("chown", "lchown", "fchown", "fchmod", "fchdir", "chroot", "nice", "getpriority", "setpriority"),
        *("sched_getaffinity", "sched_setaffinity", "sched_yield", "sysconf", "confstr", "uname", "getloadavg"),
        *("statvfs", "fstatvfs", "mkfifo", "mknod", "pread", "pwrite", "sendfile", "sync", "fdatasync", "lockf"),
        *("posix_spawn", "posix_fallocate", "wait", "wait3", "wait4", "waitid", "pidfd_open", "memfd_create"),
        *("WNOHANG", "WIFSIGNALED", "WIFEXITED", "O_NONBLOCK", "O_NOFOLLOW", "O_DIRECTORY", "O_CLOEXEC", "O_SYNC"),
        *("set_blocking", "openpty", "pathconf", "getxattr", "setxattr", "ctermid", "ttyname"),
    },
    signal: {name for name in dir(signal) if name.startswith("SIG") and name not in SIGNALS}
    | {"alarm", "setitimer", "getitimer", "ITIMER_PROF", "ITIMER_REAL", "pause", "pthread_kill", "pthread_sigmask"}
    | {"sigwait", "siginterrupt"},
    socket: {"AF_UNIX", "SO_REUSEPORT", "SO_PEERCRED", "send_fds", "recv_fds"},
    asyncio: {"open_unix_connection", "start_unix_server"},
    time: {"tzset", "pthread_getcpuclockid", "clock_getres"},
}


def _fsync(descriptor: int) -> None:
    """`os.fsync` of Windows, which refuses a descriptor that cannot be written."""
    import fcntl

    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    os.fsync(descriptor)


REPLACED: dict[types.ModuleType, dict[str, Any]] = {
    sys: {"platform": "win32"},
    os: {"name": "nt", "fsync": _fsync},
}
PASSED_OVER = {"pathlib", "shutil", "os", "contextlib", "tempfile"}
"""Modules whose file operations are those of their caller."""
FORBIDDEN = set('<>:"|?*')


def _of_package(depth: int) -> bool:
    """Return whether the caller at this depth, or the one for which a module of `PASSED_OVER` works, is the package."""
    frame: types.FrameType | None = sys._getframe()
    for _ in range(depth + 1):
        frame = None if frame is None else frame.f_back
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in PASSED_OVER:
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == PACKAGE


class Hidden(types.ModuleType):
    """A module as the package sees it: without the missing names, with the replaced ones."""

    def __init__(self, module: types.ModuleType) -> None:
        super().__init__(module.__name__)
        vars(self).update(REPLACED.get(module, {}), _module=module, _missing=MISSING.get(module, set()))

    def __getattr__(self, name: str) -> Any:
        if name in self._missing:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self._module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)

    def __reduce__(self) -> Any:  # functions of a script are pickled with the modules that they use
        return importlib.import_module, (self.__name__,)


HIDDEN: dict[types.ModuleType, Hidden] = {}
_import = builtins.__import__


def _import_hidden(name, globals=None, locals=None, fromlist=(), level=0):
    if level or (globals or {}).get("__name__", "").partition(".")[0] != PACKAGE:
        return _import(name, globals, locals, fromlist, level)
    if name in MODULES:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    module = _import(name, globals, locals, fromlist, level)
    return HIDDEN.get(module, module)


def _locking(descriptor: int, mode: int, count: int) -> None:
    """`msvcrt.locking`: a region, from the position on, that one process holds."""
    import fcntl

    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB if mode == _msvcrt.LK_NBLCK else fcntl.LOCK_UN, count, 0, 1)


_msvcrt: Any = types.ModuleType("msvcrt")
_msvcrt.LK_NBLCK, _msvcrt.LK_UNLCK, _msvcrt.locking = 2, 0, _locking

_begin, _send = subprocess.Popen.__init__, subprocess.Popen.send_signal


def _begin_process(self, args, *more, **options):
    if _of_package(1) and (options.get("pass_fds") or options.get("preexec_fn")):
        raise ValueError("pass_fds and preexec_fn are not supported on Windows")
    _begin(self, args, *more, **options)


def _send_signal(self, number):
    if _of_package(1) and number != signal.SIGTERM:
        raise ValueError(f"unsupported signal: {number}")
    _send(self, number)


def _not_implemented(self, *_: object, **__: object) -> None:
    raise NotImplementedError


def _is_open(path: str) -> bool:
    """Return whether this process has a file open, or one below this folder."""
    path = os.path.realpath(path)
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            opened = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue
        if opened == path or opened.startswith(f"{path}/"):
            return True
    return False


def _as_on_windows(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in ("open", "os.rename", "os.remove", "os.mkdir"):
        return
    paths = [os.fspath(each) for each in arguments[:2] if isinstance(each, str | os.PathLike)]
    if not paths or not _of_package(1):
        return
    if event == "open":
        written = isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        by_shutil = sys._getframe(1).f_globals.get("__name__") == "shutil"  # it removes trees without that there
        if os.path.isdir(paths[0]) and not by_shutil:
            raise PermissionError(errno.EACCES, "a folder cannot be opened on Windows", paths[0])
        if not written:
            return
        paths = paths[:1]
    elif event != "os.mkdir":
        for path in paths:
            if _is_open(path):
                raise PermissionError(errno.EACCES, "the file is open", path)
    for path in paths:
        if FORBIDDEN & set(path):
            raise OSError(errno.EINVAL, "no name of a file on Windows", path)


if __name__ == "sitecustomize":
    if os.environ.get("SIMULATED_PLATFORM") == "darwin":
        MODULES = set()
        MISSING, REPLACED = {os: {"sched_getaffinity", "pidfd_open", "memfd_create"}}, {sys: {"platform": "darwin"}}
    else:
        sys.modules["msvcrt"] = _msvcrt
        subprocess.Popen.__init__ = _begin_process
        subprocess.Popen.send_signal = _send_signal
        asyncio.SelectorEventLoop.add_signal_handler = _not_implemented
        asyncio.SelectorEventLoop.subprocess_exec = _not_implemented
        sys.addaudithook(_as_on_windows)
    HIDDEN.update({each: Hidden(each) for each in {*MISSING, *REPLACED}})
    builtins.__import__ = _import_hidden
