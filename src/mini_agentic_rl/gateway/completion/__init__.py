"""The life of one chat request on a gateway that samples.

`http/app.py` authenticates and parses the request; then

    prepare.py     `Preparation`: rendered to token ids, constrained, held to its limits: a `PreparedChat`
    service.py     `ChatService`: sampled, recorded and answered, whole or as a stream
    choice.py      `Choice`: the tokens of one answer as they come, read as text, thought and tool calls
    record.py      the attempt in the store: looked up, held to its budget, and a span for each answer
    remember.py    `ConversationMemory`: what the next call of the conversation continues from, and where it forks
"""
