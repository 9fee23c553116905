"""Stores: the queue, the spans and the resources that an algorithm and its runners share.

`LightningStore` is the contract. `InMemoryLightningStore`, `SqlLightningStore` and `MongoLightningStore` keep the data.
`LightningStoreServer` shares a store over HTTP, and `LightningStoreClient` calls it. `LightningStoreThreaded` calls a
store from any thread. `open_store` opens a store by its address, and `retry_rollouts` queues failed rollouts again.

The path of a call, such as `update_attempt`, down to the data:

    base.py            `LightningStore`: the methods and their meaning; capabilities and errors of a store
    ledger_store.py    `LedgerStore`: runs the methods of the ledger in transactions, and waits for changes
    ledger.py          `Ledger`: the methods. They read rows, apply the rules, write rows; idempotency keys
    lifecycle.py       the rules: state machines of rollouts, attempts and workers; the store's clock
    tables.py          `Tables`: the reads and writes of a backend; `Query`; conversion of objects and database rows
    listing.py         filters and pages of the lists of rollouts and groups; rewards of spans
    memory.py          the store in memory and its tables
    database_store.py  `DatabaseStore`: transactions in threads, with group commit
    sql/               the tables in SQLite or PostgreSQL

A new database backend implements `Tables` and `Database`; see
integrations/mongo/connection.py. An entry point of the group `mini_agentic_rl.stores` gives it a URL scheme, and
`make_store` in tests/store/conftest.py runs the tests of the contract on it.

Around a store: threading.py forwards calls to an event-loop thread, http/ serves and calls a store over HTTP, and
open.py opens a store by its address, and copies the finished rollouts of another store.

Names that need a database driver or the HTTP libraries are loaded on first use.
"""

from ..compat import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
