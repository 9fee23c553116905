"""From messages to token ids, and from token ids to text.

renderer.py    `ChatRenderer`: renders a conversation with the chat template, or continues it from recorded ids
template.py    `ChatTemplate`: the abilities of a chat template, found by probes
messages.py    messages of all clients in one plain form, and as the turns of a template
content.py     encodes special tokens in content as ordinary text, and long texts in pieces
decoding.py    ids to text, and text to a thought, content and tool calls
"""
