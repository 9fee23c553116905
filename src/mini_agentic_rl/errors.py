"""The error that a person can mend: its text is one line that names the setting to change.

The commands print a `UserError` as that one line and exit with code 2; anything else is a fault of ours and keeps
its traceback.
"""

from __future__ import annotations


class UserError(Exception):
    """Something that was asked for cannot be done; the message says what to change."""
