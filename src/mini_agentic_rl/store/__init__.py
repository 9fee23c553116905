"""Stores: the queue, the spans and the resources that an algorithm and its runners share.

`LightningStore` is the contract. `InMemoryLightningStore`, `SqlLightningStore` and `MongoLightningStore` keep the data;
`LightningStoreServer` shares a store over HTTP and `LightningStoreClient` calls one there; `LightningStoreThreaded`
calls one from any thread. `open_store` makes a store from one line of text, `retry_rollouts` queues failed rollouts
again.

Follow a call down to the data, `update_attempt` for example:

    base.py            `LightningStore`: the method, and what callers may rely on; capabilities and errors of a store
    ledger_store.py    `LedgerStore`: the method for every store that keeps its data itself. It runs an operation of
                       the ledger in a transaction, and waits for the changes of other callers.
    ledger.py          `Ledger`: the operation. It reads rows, applies the rules, writes rows. A write that is sent
                       again with the same idempotency key is not carried out again.
    lifecycle.py       the rules: state machines of rollouts, attempts and workers, as pure functions; the store's clock
    tables.py          `Tables`: the reads and writes that a backend supplies; `Query`: a filter and page as data; the
                       conversion between objects and rows of a database
    memory.py          the store in memory and its tables
    database_store.py  `DatabaseStore`: transactions in threads, with group commit
    sql/               tables in SQLite or PostgreSQL

A new backend that is a database is a `Tables`, and a `DatabaseStore` whose five abstract methods run a transaction, run
a query, report writes by other processes, explain an error and close; integrations/mongo/store.py shows them. An entry
point of the group `mini_agentic_rl.stores` gives it a scheme, and `make_store` of tests/store/conftest.py puts it under
the tests that every store passes.

Around a store: threading.py forwards each call to an event-loop thread, http/ serves and calls a store over HTTP,
open.py opens a store by its address and queues failed rollouts again, importing.py imports the records of
agent-lightning 0.3.

Names that need a database driver or the HTTP libraries are loaded when they are asked for, because those load slowly.
"""

from ..compat import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
