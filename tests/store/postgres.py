"""A PostgreSQL server for the tests: private, in a temporary folder, ended with the tests.

It is started when the first test asks for it, from the binaries on PATH or under /usr/lib/postgresql. Where there are
none, the tests that need it are skipped.
"""

from __future__ import annotations

import atexit
import functools
import glob
import itertools
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

_BINARIES = shutil.which("initdb") and shutil.which("postgres")
_FOLDERS = [str(Path(_BINARIES).parent)] if _BINARIES else sorted(glob.glob("/usr/lib/postgresql/*/bin"))
_START_SECONDS = 30.0
_USER = "tester"
PASSWORD = "p@ss/word:1"

needs_postgres = pytest.mark.skipif(
    not _FOLDERS or os.name != "posix",
    reason="no PostgreSQL binaries (initdb, postgres) on PATH or under /usr/lib/postgresql: "
    "the store in PostgreSQL is left unchecked; install the server, on Debian with apt-get install postgresql",
)


class PostgresServer:
    """A server process on a folder of its own, on a free port of the loopback, whose only user needs a password."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="agl-postgres-"))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._data = self.folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._account: dict[str, Any] = {"cwd": self.folder}
        if os.geteuid() == 0:  # the server refuses to run as root
            account = pwd.getpwnam("postgres")
            os.chown(self.folder, account.pw_uid, account.pw_gid)
            self._account |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        password = self.folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        options = ["--username", _USER, "--pwfile", str(password), "--auth", "scram-sha-256", "-E", "UTF8"]
        initdb = [f"{_FOLDERS[-1]}/initdb", "-D", str(self._data), "--locale", "C", "--no-sync", *options]
        subprocess.run(initdb, capture_output=True, check=True, **self._account)

    def start(self) -> None:
        """Start it and wait until it answers; once stopped or killed, it may be started again."""
        options = f"--listen_addresses=127.0.0.1 --port={self.port} --unix_socket_directories= --fsync=off"
        options += " --max_connections=200 --shared_buffers=32MB"
        command = [f"{_FOLDERS[-1]}/postgres", "-D", str(self._data), *options.split()]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **self._account)
        end = time.monotonic() + _START_SECONDS
        while True:
            try:
                psycopg.connect(self.url("postgres")).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError((self.folder / "server.log").read_text()) from None
                time.sleep(0.02)

    def stop(self) -> None:
        """End it at once, with all its connections, and wait for that."""
        if self._process is not None:
            self._process.send_signal(3)  # SIGQUIT: children end as well
            self._process.wait()
            self._process = None

    def remove(self) -> None:
        """End it and delete its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str, *, user: str = _USER, password: str = PASSWORD) -> str:
        """Where a database of it is."""
        secret = "".join(f"%{byte:02X}" for byte in password.encode())
        return f"postgresql://{user}:{secret}@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str, database: str = "postgres") -> None:
        """Run a statement, outside of any transaction."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(statement)


_numbers = itertools.count(1)


@functools.cache
def server() -> PostgresServer:
    """The server of this session."""
    started = PostgresServer()
    atexit.register(started.remove)
    started.start()
    return started


def new_database() -> str:
    """The URL of an empty database."""
    name = f"store_{next(_numbers)}"
    server().execute(f"CREATE DATABASE {name} STRATEGY file_copy")
    return server().url(name)


@functools.cache
def _shared_database() -> str:
    return new_database()


def emptied_database() -> str:
    """The URL of a database without rows, shared by tests that run one after the other: no other may use it."""
    url = _shared_database()
    with psycopg.connect(url, autocommit=True) as connection:
        tables = [row[0] for row in connection.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE 'agl_%'")]
        rows = [table for table in tables if table != "agl_schema"]
        if rows:
            connection.execute(f"TRUNCATE {', '.join(rows)} RESTART IDENTITY")
    return url
