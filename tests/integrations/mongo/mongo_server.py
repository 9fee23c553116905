"""A MongoDB server for the tests: the one that `AGL_TEST_MONGO_URL` names, else one that is started here.

The one that is started is SecantusDB: another program than MongoDB, with its wire protocol, its storage engine and its
transactions, which comes as a Python package. It shows what the store makes of a server's answers, not that MongoDB
gives the same ones: for that, set the variable.
"""

from __future__ import annotations

import atexit
import functools
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from processes import free_port

TEST_URL = "AGL_TEST_MONGO_URL"
_START_SECONDS = 60.0
_HAS_SERVER = find_spec("secantus") is not None

needs_mongo = pytest.mark.skipif(
    TEST_URL not in os.environ and not _HAS_SERVER,
    reason=f"{TEST_URL} is not set, and SecantusDB not installed: the store in MongoDB is left unchecked",
)
needs_own_mongo = pytest.mark.skipif(
    not _HAS_SERVER,
    reason="SecantusDB is not installed: what the store does about servers that die or stand alone is left unchecked",
)


class MongoServer:
    """A server process on a folder. `options` are of its command line."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.options = options
        self.port = free_port()
        self.url = f"mongodb://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers; once stopped or killed, it may be started again."""
        command = [sys.executable, "-m", "secantus", "--host", "127.0.0.1", "--port", str(self.port)]
        options = ["--storage-path", str(self.folder / "data"), "--log-level", "ERROR", *self.options]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen([*command, *options], stdout=log, stderr=log, cwd=self.folder)
        end = time.monotonic() + _START_SECONDS
        with MongoClient(self.url, serverSelectionTimeoutMS=500) as client:
            while True:
                try:
                    client.admin.command("ping")
                    return
                except PyMongoError:
                    if self._process.poll() is not None or time.monotonic() > end:
                        raise RuntimeError((self.folder / "server.log").read_text()) from None

    def stop(self, with_signal: int = signal.SIGTERM) -> None:
        """End it, and wait for that."""
        if self._process is not None:
            self._process.send_signal(with_signal)
            self._process.wait()
            self._process = None


_databases: list[str] = []


@functools.cache
def mongo_url() -> str:
    """The URL of the server that tests share. It is stopped, or cleared of what they left, when the tests are over."""
    given = os.environ.get(TEST_URL)
    if given is not None:
        atexit.register(_drop_databases, given)
        return given
    folder = tempfile.TemporaryDirectory(prefix="agl-mongo-", ignore_cleanup_errors=True)
    server = MongoServer(Path(folder.name), "--enable-test-commands")
    server.start()
    atexit.register(folder.cleanup)
    atexit.register(server.stop, signal.SIGKILL)
    return server.url


def new_database() -> str:
    """The name of a database that is not there yet."""
    _databases.append(f"agl_test_{secrets.token_hex(6)}")
    return _databases[-1]


def _drop_databases(url: str) -> None:
    with MongoClient(url) as client:
        for name in _databases:
            client.drop_database(name)
