"""SQL for agents that can only read: one SELECT in, its rows or one readable line out.

| check | refuses |
|---|---|
| `check_text` | texts that are too long or nested too deeply, statements other than SELECT |
| `Authorizer` | tables, functions and actions that are not on the list, as SQLite compiles the query |
| `ReadOnlyConnection` | writing (read-only, immutable), several statements, long values, many rows, long work |
| `worker` | a process that may write no file, uses bounded memory, and is killed when it is late |

`SqlDatabase` is what agents use. The prompts are in `recipes.sql.data`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
