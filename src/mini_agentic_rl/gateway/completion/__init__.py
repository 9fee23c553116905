"""One chat request on the gateway that samples. Its steps in order:

authenticate, parse   `http/app.py`: admission, dialect, `parse_chat_request`
render, limit         prepare.py: `Preparation` renders the prompt, compiles the grammar, applies the limits
sample                service.py: `ChatService` and `ChatCall`
                      choice.py: `Choice` reads the tokens of one answer as text, thought and tool calls
record                record.py: the attempt in the store, its budget, and a span for each answer
                      remember.py: `ConversationMemory`, from which the next call continues
answer                `http/app.py`: whole, or as server-sent events
"""
