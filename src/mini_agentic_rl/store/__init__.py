"""Stores: the queue, the spans and the resources that an algorithm and its runners share.

`LightningStore` is the contract. `InMemoryLightningStore`, `SqlLightningStore` and `MongoLightningStore` keep the data;
`LightningStoreServer` shares a store over HTTP and `LightningStoreClient` calls one there; `LightningStoreThreaded`
calls one from any thread. `open_store` makes a store from one line of text, `retry_rollouts` queues failed rollouts
again.

Follow a call down to the data, `update_attempt` for example:

    base.py            `LightningStore`: the method, and what callers may rely on; capabilities.py, errors.py, unset.py
    ledger_store.py    `LedgerStore`: the method for every store that keeps its data itself; it runs an operation of the
                       ledger in a transaction, and waits for what other callers do (waiting.py, clock.py)
    ledger.py          `Ledger`: the operation: reads rows, asks the rules what becomes of them, writes rows
    once.py            what a write made, kept under the key of its request: sent again, it is not done again
    lifecycle.py       the rules: state machines of rollouts, attempts and workers, as pure functions
    tables.py          `Tables`: the reads and writes that a backend supplies, and `Query`, a filter and page as data;
                       reward_spans.py finds spans that may carry a reward, paged_walk.py walks through a store that
                       has pages alone
    memory.py          the store in memory; memory_tables.py are its tables
    database_store.py  `DatabaseStore`: transactions in threads, committed in groups (group_commit.py)
    sql/, mongo/       tables in a database, with rows made of objects in rows.py

A new backend that is a database is a `Tables`, and a `DatabaseStore` whose five abstract methods run a transaction, run
a query, tell of writes by other processes, explain an error and close; mongo/store.py shows them. open.py gives it a
scheme, and `make_store` of tests/store/conftest.py puts it under the tests that every store passes.

Around a store: threading.py is one that hands each call on, http/ is one over HTTP, importing.py and foreign.py take
over what others recorded, retry.py tries again.

Names that need a database driver or the HTTP libraries are loaded when they are asked for, because those load slowly.
"""

from ..compat import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
