"""An agent that answers questions by asking a database, on the OpenAI Agents SDK.

`agent` is what a trainer runs, `queries` the tools that it calls in one rollout; its words are in `sql_conversation`.
`execution` and `answer` are what `reward` adds up. Needs the extra `sql`; `agent` alone imports the SDK.
"""
