"""The version of the tables: made in an empty database, brought up to date in an older one.

A new version is one more function at the end of `MIGRATIONS`, and the same change in `sql_schema`. A migration writes
out what it does instead of reading `sql_schema`, which goes on changing after it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from sqlalchemy import Connection, insert, inspect, select, text, update

from ..vocabulary import LightningStoreError
from .schema import METADATA, VERSION

logger = logging.getLogger(__name__)


def _indexes_that_are_used(connection: Connection) -> None:
    """A list sorted by start time reads only the page that is asked for; a new span enters one index less.

    The index that is gone ordered the spans of an attempt, which are few enough to be sorted when they are read.
    """
    connection.execute(text("CREATE INDEX agl_rollouts_by_start ON agl_rollouts (start_time, number)"))
    connection.execute(text("DROP INDEX agl_spans_in_order"))


MIGRATIONS: Final[tuple[Callable[[Connection], None], ...]] = (_indexes_that_are_used,)
"""At index n - 1: from version n to version n + 1."""
SCHEMA_VERSION: Final = len(MIGRATIONS) + 1


def prepare(connection: Connection, name: str, *, alone: bool) -> None:
    """Make the tables, or bring them to this version, in the running transaction, which excludes other writers.

    Args:
        connection: In a transaction.
        name: What messages call the store.
        alone: Refuse a database that holds other tables than a store's.

    Raises:
        LightningStoreError: the database holds something else, or a store of a newer version.
    """
    present = set(inspect(connection).get_table_names())
    if VERSION.name not in present:
        if present & set(METADATA.tables) or (alone and present):
            raise LightningStoreError(f"{name} is a database, but not of a store: choose another store path or URL")
        METADATA.create_all(connection)
        connection.execute(insert(VERSION).values(version=SCHEMA_VERSION))
        return
    version = connection.scalar(select(VERSION.c.version))
    if version is None or not 1 <= version <= SCHEMA_VERSION:
        raise LightningStoreError(
            f"the store {name} has schema version {version}, this program reads versions up to {SCHEMA_VERSION}: "
            "use the program that wrote it, or choose another store path or URL"
        )
    if version == SCHEMA_VERSION:
        return
    for migrate in MIGRATIONS[version - 1 :]:
        migrate(connection)
    connection.execute(update(VERSION).values(version=SCHEMA_VERSION))
    logger.info("the store %s was brought from schema version %d to %d", name, version, SCHEMA_VERSION)
