"""The life of one chat request, a file for each thing that happens to it.

Follow a request:

    attempts.py    the store is asked whether it knows the attempt; its seed, and recorded calls to answer with
    prepare.py     checked against what is served, rendered to token ids, constrained: a `PreparedChat`
    sample.py      `ChatService`: handed to the sampler, and through all that follows
    read.py        `Choice`: the tokens as they come, read as text, thought and tool calls
    record.py      a span with the exact tokens in the store
    remember.py    `ConversationMemory`: what the next call of the conversation continues from, and where it forks
    answer.py      told to the client, whole or as a stream
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
