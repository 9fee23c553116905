"""The pages that are made from the code: settings, commands, public names."""

from __future__ import annotations

from .api import api_pages
from .declared import commands_page, settings_page


def generated_pages() -> dict[str, str]:
    """Return them by their places below `reference/`."""
    return {"settings.md": settings_page(), "command-line.md": commands_page(), **api_pages()}
