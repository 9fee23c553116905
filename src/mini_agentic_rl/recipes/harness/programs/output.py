"""The output of a command: its beginning and its end are kept, and of what lies between only the number of bytes."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Final

_FLOOD: Final = 16 << 20
_BREATH_SECONDS: Final = 0.002


class KeptOutput:
    """Bytes that were read from a pipe, bounded."""

    def __init__(self, descriptor: int, limit: int) -> None:
        """`descriptor` is the pipe's, which does not block; `limit` is in bytes."""
        self.descriptor = descriptor
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._in_tail = 0
        self._total = 0

    def read(self) -> bool:
        """Take what there is; False once the pipe has ended."""
        try:
            data = os.read(self.descriptor, 1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._total += len(data)
        if self._total > _FLOOD:  # whoever floods a pipe waits for its reader, who then leaves others the processor
            time.sleep(_BREATH_SECONDS)
        room = self._half - len(self._head)
        self._head += data[:room]
        rest = data[max(0, room) :]
        if rest:
            self._tail.append(rest)
            self._in_tail += len(rest)
            while self._in_tail - len(self._tail[0]) >= self._half:
                self._in_tail -= len(self._tail.popleft())
        return bool(data)

    def drain(self) -> None:
        """Take what is still in the pipe, without waiting for more."""
        before = -1
        while before != self._total and self.read():
            before = self._total

    def text(self) -> str:
        """Return the output, with a line that says what was left out."""
        tail = b"".join(self._tail)[-self._half :]
        left_out = self._total - len(self._head) - len(tail)
        between = f"\n[... {left_out} bytes are left out ...]\n".encode() if left_out else b""
        return (bytes(self._head) + between + tail).decode("utf-8", "replace")
