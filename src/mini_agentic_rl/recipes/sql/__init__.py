"""The SQL agent: it answers questions by querying a database, on the OpenAI Agents SDK.

`SqlAgent` runs rollouts and `SqlReward` scores them: execution match on two databases, and the quality of the answer.
`data` has the questions, the database and the prompts, `tool` the query tool. Needs the extra `recipes`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
