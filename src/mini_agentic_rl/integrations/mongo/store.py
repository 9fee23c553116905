"""The store in MongoDB, for several machines that share a MongoDB already.

When a call returns, its change is committed by the majority of the replica set, in its journals. Every change is one
transaction that first updates the same lock document, so that transactions of several processes are serialized by
retries and a rollout is claimed once. A query is a transaction too and reads one snapshot.

The server has to be a replica set (one member is enough) of MongoDB 4.4 or newer: a standalone server has no
transactions. A task, a span and a set of resources each have to fit into one document of 16 MB.

While a caller waits for work or for the end of rollouts, the lock document is polled for writes of other processes;
writes of this process are announced at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ...errors import MissingPackageError
from ...redaction import shown_address
from ...store.database_store import DatabaseStore

if TYPE_CHECKING:
    from .connection import MongoConnection


class MongoLightningStore(DatabaseStore):
    """Store in a MongoDB database. Pickled to another process, it opens the same database there.

    Args:
        url: `mongodb://user:password@host:port` or `mongodb+srv://…`, with any options of the driver.
        database: name of the database, created if missing. The collections of the store are named `agl_…`; others are
            not touched.
        scan_debounce_seconds: ordinary calls check the limits of attempts at most this often; waiting calls check
            whenever a limit is reached.
        timeout_seconds: limit for a call to reach the server, to get the lock and to have its commit confirmed.

    Raises:
        LightningStoreError: the server cannot be used; the message says why. Later calls may raise it too.
        ValueError: the URL is not that of a MongoDB server, or the name of the database is not valid.
        UserError: pymongo is not installed.
    """

    def __init__(
        self,
        url: str = "mongodb://localhost:27017",
        database: str = "agentlightning",
        *,
        scan_debounce_seconds: float = 0.5,
        timeout_seconds: float = 30.0,
    ) -> None:
        if not url.startswith(("mongodb://", "mongodb+srv://")):
            raise ValueError(
                f"store URL {_without_password(url)!r}: expected mongodb://host:port or mongodb+srv://host"
            )
        # An unescaped slash in a password would put a part of it into the name.
        name = f"{_without_password(url)} ({database.rpartition('@')[2]})"
        connection = _connection_type()(url, database, name, timeout_seconds)
        arguments = {
            "url": url,
            "database": database,
            "scan_debounce_seconds": scan_debounce_seconds,
            "timeout_seconds": timeout_seconds,
        }
        super().__init__(connection, name, scan_debounce_seconds=scan_debounce_seconds, arguments=arguments)


def _connection_type() -> type[MongoConnection]:
    try:
        from .connection import MongoConnection
    except ModuleNotFoundError as error:
        if error.name not in ("pymongo", "bson"):
            raise
        raise MissingPackageError("a MongoLightningStore", "pymongo", extra="services") from error
    return MongoConnection


def _without_password(url: str) -> str:
    """Return the URL up to the hosts, without a user."""
    scheme, _, rest = shown_address(url).partition("://")
    hosts = rest.rpartition("@")[2].partition("?")[0].partition("/")[0]
    return f"{scheme}://{hosts}"


def open_mongo(address: str) -> MongoLightningStore:
    """Return the store on the database that `mongodb://host/database` names."""
    database = urlsplit(address).path.strip("/")
    return MongoLightningStore(address, database=database) if database else MongoLightningStore(address)
