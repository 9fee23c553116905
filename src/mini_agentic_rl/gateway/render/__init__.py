"""From messages to token ids and from token ids to text.

`ChatRenderer` renders a conversation through the model's own chat template (`ChatTemplate` finds out what that can
do), and continues one that goes on from its recorded ids. `Detokenizer` and `AnswerReader` go the other way: ids
become text, and the text becomes a thought, content and tool calls.
"""

from .messages import Message, plain_messages, squashed, without_thought
from .renderer import ChatRenderer, has_thought
from .template import ChatTemplate
from .thinking import AnswerPart, AnswerReader, ThinkingName, ThinkTags, Thought, ThoughtScanner
from .tokenizer import Decoder, Detokenizer, Tokenizer

__all__ = [
    "AnswerPart",
    "AnswerReader",
    "ChatRenderer",
    "ChatTemplate",
    "Decoder",
    "Detokenizer",
    "Message",
    "ThinkTags",
    "ThinkingName",
    "Thought",
    "ThoughtScanner",
    "Tokenizer",
    "has_thought",
    "plain_messages",
    "squashed",
    "without_thought",
]
