"""From messages to token ids and from token ids to text.

`ChatRenderer` renders a conversation through the model's own chat template (`ChatTemplate` finds out what that can
do), and continues one that goes on from its recorded ids. `Detokenizer` and `AnswerReader` go the other way: ids
become text, and the text becomes a thought, content and tool calls.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
