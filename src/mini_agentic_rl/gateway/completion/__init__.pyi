from .answer import ChatStream as ChatStream
from .answer import whole_answer as whole_answer
from .attempts import KnownAttempts as KnownAttempts
from .prepare import PreparedChat as PreparedChat
from .record import CallContext as CallContext
from .record import RecordedAnswer as RecordedAnswer
from .record import record_answer as record_answer
from .sample import ChatService as ChatService
