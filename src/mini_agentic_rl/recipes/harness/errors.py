"""The error of one rollout whose command did not do what it should; no other rollout is touched by it."""

from __future__ import annotations


class HarnessError(RuntimeError):
    """Report that a command could not be run, reached a limit, was killed, or never called the model."""
