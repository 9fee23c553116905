"""The errors of stores: what a person can mend, in one line."""

from __future__ import annotations

from ..errors import UserError


class LightningStoreError(UserError, RuntimeError):
    """Report that a store is locked, full, damaged, closed or of another version; the message says what to do."""


class StorageFailedError(LightningStoreError):
    """Report that the disk under the store is full, or cannot be read or written."""


class StoreUnreachableError(LightningStoreError):
    """Report that the store's server does not answer at the moment."""
