"""SQL for agents, read-only by construction: one SELECT in, its rows or one readable line out.

A query passes four gates, each of which would do alone against most of what can go wrong:

| gate | holds back |
|---|---|
| `check_statement` | too long or too deep a text, several statements, anything but a SELECT, recursion (by sqlglot) |
| `Authorizer` | tables, functions and actions that are not on the list, as SQLite itself compiles the query |
| `ReadOnlyConnection` | writing (read-only, immutable), long work (time), long values, many rows (limits of SQLite) |
| `worker` | a process of its own that may write no file and use so much memory, killed when it is late |

`SqlDatabase` is what agents ask; `recipes.sql.data` holds what models are told of it. Needs the extra `recipes`.
What the worker does not need is loaded when it is asked for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
