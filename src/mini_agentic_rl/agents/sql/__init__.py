"""An agent that answers questions by asking a database, on the OpenAI Agents SDK.

`agent` is what a trainer runs; `protocol` is its conversation, `queries` the tools that it calls in one rollout;
`execution` and `answer` are what `reward` adds up. Needs the extra `sql`; `agent` alone imports the SDK.
"""
