"""The SQL agent: it answers questions by asking a database, on the OpenAI Agents SDK.

`SqlAgent` is what a trainer runs, `SqlReward` how its rollouts are scored: execution match on two databases, and the
quality of the answer. Questions, database and the words of the conversation are in `data`, the tool is in
`tool`. Needs the extra `recipes`; names are loaded when they are first asked for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
