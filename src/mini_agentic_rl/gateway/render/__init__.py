"""From messages to token ids and from token ids to text.

renderer.py    `ChatRenderer`: a conversation through the model's own chat template, continued from recorded ids
template.py    `ChatTemplate`: what that template can do, found out by probes
messages.py    messages of any client in one plain shape, and as the turns of a template
content.py     special tokens in content are ordinary text; long texts are encoded in pieces
decoding.py    ids become text, and text becomes a thought, content and tool calls
"""
