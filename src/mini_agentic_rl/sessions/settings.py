"""The settings of a server that records sessions."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ..config import Settings


class SessionSettings(Settings):
    """Consent of those whose conversations are recorded, and how long they are kept."""

    consent: Literal["ask", "assume"] = "ask"
    """Treatment of a session that says nothing about consent: `ask` records only those that say yes, `assume`
    all but those that say no."""
    keep_days: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    """Days after which a session is deleted, whether it was learnt from or not."""
